// Texts of stores may not be UTF-8.

#include "python/src/report_tuples.h"

#include <nanobind/stl/optional.h>

#include "python/src/convert.h"

namespace cairn::python {

namespace nb = nanobind;

namespace {

const char* ChangeName(core::KeyChange::Kind kind) {
  switch (kind) {
    case core::KeyChange::Kind::kAdded:
      return "added";
    case core::KeyChange::Kind::kRemoved:
      return "removed";
    case core::KeyChange::Kind::kChanged:
      return "changed";
  }
  return "changed";
}

const char* OutcomeName(kv::CopiedStep::Outcome outcome) {
  switch (outcome) {
    case kv::CopiedStep::Outcome::kCopied:
      return "copied";
    case kv::CopiedStep::Outcome::kPresent:
      return "present";
    case kv::CopiedStep::Outcome::kDeleted:
      return "deleted";
  }
  return "copied";
}

}  // namespace

nb::tuple ToPyDiff(const core::Diff& diff) {
  nb::list changes;
  for (const core::KeyChange& change : diff.changes) {
    changes.append(nb::make_tuple(ChangeName(change.kind), ToPyText(change.fqn), change.is_tensor,
                                  change.changed_bytes, change.total_bytes,
                                  ToPyText(change.detail)));
  }
  return nb::make_tuple(changes, diff.unchanged_keys);
}

nb::list ToPyErrors(const std::vector<Error>& errors) {
  nb::list list;
  for (const Error& error : errors) {
    list.append(nb::make_tuple(ToPyText(error.key), ToPyText(error.ToString()),
                               ToPyText(error.file), error.offset_bytes));
  }
  return list;
}

nb::dict ToPyCompactReport(const kv::CompactReport& report) {
  nb::dict members;
  members["live_bytes"] = report.live_bytes;
  members["segment_bytes"] = report.segment_bytes;
  members["old_segments"] = report.old_segments;
  members["old_bytes"] = report.old_bytes;
  members["moved_bytes"] = report.moved_bytes;
  members["new_segments"] = report.new_segments;
  members["new_bytes"] = report.new_bytes;
  members["compressed_chunks"] = report.compressed_chunks;
  members["folded_chunks"] = report.folded_chunks;
  members["rewritten_steps"] = report.rewritten_steps;
  return members;
}

nb::list ToPyCopyReport(const kv::CopyReport& report) {
  nb::list copied;
  for (const kv::CopiedStep& step : report.steps) {
    copied.append(nb::make_tuple(step.step, OutcomeName(step.outcome), step.logical_bytes,
                                 step.copied_segments, step.copied_bytes, step.reused_segments));
  }
  return copied;
}

nb::tuple ToPyScrubState(const core::ScrubState& state) {
  nb::object error = nb::none();
  if (state.error) error = ToPyText(state.error->ToString());
  return nb::make_tuple(state.passes, state.bytes_read, state.damage_count,
                        ToPyErrors(state.damage), error, state.is_running, state.pass_bytes,
                        state.pass_total_bytes);
}

}  // namespace cairn::python
