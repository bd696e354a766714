// Each attribute is stated once, with its member and its docstring.

#include "python/src/reports.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "core/inspect/compare.h"
#include "core/inspect/stored_statistics.h"
#include "core/load/load_options.h"
#include "kv/base/copy_options.h"
#include "kv/maintain/compact_options.h"
#include "python/src/bindings.h"
#include "python/src/convert.h"
#include "python/src/keyword_arguments.h"

namespace cairn::python {

namespace nb = nanobind;

namespace {

// Converts a member to Python, and back when it is unpickled.
template <typename T>
struct Member {
  static T ToPy(const T& value) { return value; }
  static T FromPy(nb::handle value) { return nb::cast<T>(value); }
};

// Texts of stores may not be UTF-8.
template <>
struct Member<std::string> {
  static nb::str ToPy(const std::string& text) { return nb::borrow<nb::str>(ToPyText(text)); }
  static std::string FromPy(nb::handle text) { return FromPyText(text); }
};

// Hex digits.
template <>
struct Member<std::optional<kv::RunId>> {
  static std::optional<nb::str> ToPy(const std::optional<kv::RunId>& run) {
    if (!run) return std::nullopt;
    return nb::str(nb::bytes(run->data(), run->size()).attr("hex")());
  }
  static std::optional<kv::RunId> FromPy(nb::handle run) {
    if (run.is_none()) return std::nullopt;
    return ToRunId(nb::cast<nb::bytes>(nb::handle(&PyBytes_Type).attr("fromhex")(run)));
  }
};

template <typename T>
constexpr std::array<const char*, 3> kNames;  // of the enumerators, in their order
template <>
constexpr std::array<const char*, 3> kNames<core::KeyChange::Kind>{"added", "removed", "changed"};
template <>
constexpr std::array<const char*, 3> kNames<kv::CopiedStep::Outcome>{"copied", "present",
                                                                     "deleted"};
template <typename T>
  requires std::is_enum_v<T>
struct Member<T> {
  static nb::str ToPy(T value) { return nb::str(kNames<T>[static_cast<size_t>(value)]); }
  static T FromPy(nb::handle value) {
    const auto found = std::ranges::find(kNames<T>, FromPyText(value));
    return static_cast<T>(found - kNames<T>.begin());
  }
};

template <typename T>
struct Member<std::vector<T>> {
  using Element = decltype(Member<T>::ToPy(std::declval<const T&>()));
  static nb::typed<nb::tuple, Element, nb::ellipsis> ToPy(const std::vector<T>& values) {
    nb::list list;
    for (const T& value : values) list.append(Member<T>::ToPy(value));
    return nb::tuple(list);
  }
  static std::vector<T> FromPy(nb::handle values) {
    std::vector<T> list;
    for (nb::handle value : values) list.push_back(Member<T>::FromPy(value));
    return list;
  }
};

template <>
struct Member<std::vector<kv::Metric>> {
  static nb::typed<nb::dict, nb::str, double> ToPy(const std::vector<kv::Metric>& metrics) {
    nb::dict values;
    for (const kv::Metric& metric : metrics) values[ToPyText(metric.name)] = metric.value;
    return values;
  }
  static std::vector<kv::Metric> FromPy(nb::handle values) {
    std::vector<kv::Metric> metrics;
    for (auto [name, value] : nb::cast<nb::dict>(values)) {
      metrics.push_back({.name = FromPyText(name), .value = nb::cast<double>(value)});
    }
    return metrics;
  }
};

// The class of a report.
template <typename T>
class ReportClass : public nb::class_<T> {
 public:
  ReportClass(nb::module_& m, const char* name, const char* doc = "")
      : nb::class_<T>(m, name, doc) {
    const std::shared_ptr<const Members> members = members_;
    const auto values = [members](const T& self) {
      nb::list list;
      for (const auto& member : *members) list.append(member.get(self));
      return nb::tuple(list);
    };
    this->def("__repr__", [members, name](const T& self) {
      nb::object text = nb::str(name) + nb::str("(");
      for (const auto& member : *members) {
        if (&member != members->data()) text += nb::str(", ");
        text += nb::str(member.name) + nb::str("=") + nb::repr(member.get(self));
      }
      return nb::borrow<nb::str>(text + nb::str(")"));
    });
    this->def(
        "__eq__",
        [values](const T& self, nb::handle other) {
          return nb::isinstance<T>(other) && values(self).equal(values(nb::cast<const T&>(other)));
        },
        nb::arg("other").none());
    this->def("__hash__", [values](const T& self) { return nb::hash(values(self)); });
    this->def("__getstate__", values);
    this->def("__setstate__", [members](T& self, nb::tuple state) {
      new (&self) T();
      for (size_t i = 0; i < members->size(); ++i) (*members)[i].set(self, state[i]);
    });
  }

  template <typename Pointer>
  ReportClass& Has(const char* name, Pointer pointer, const char* doc = "") {
    using Type = Member<std::remove_cvref_t<decltype(std::declval<T&>().*pointer)>>;
    const auto get = [pointer](const T& self) { return Type::ToPy(self.*pointer); };
    members_->push_back(
        {.name = name,
         .get = [get](const T& self) { return nb::cast(get(self)); },
         .set = [pointer](T& self, nb::handle value) { self.*pointer = Type::FromPy(value); }});
    this->def_prop_ro(name, get, doc);
    return *this;
  }

 private:
  struct NamedMember {
    const char* name;
    std::function<nb::object(const T&)> get;
    std::function<void(T&, nb::handle)> set;
  };
  using Members = std::vector<NamedMember>;
  std::shared_ptr<Members> members_ = std::make_shared<Members>();  // with the functions
};

template <core::KeyChange::Kind kind>
nb::typed<nb::tuple, nb::str, nb::ellipsis> FqnsOf(const core::Diff& diff) {
  nb::list fqns;
  for (const core::KeyChange& change : diff.changes) {
    if (change.kind == kind) fqns.append(ToPyText(change.fqn));
  }
  return nb::tuple(fqns);
}

void BindSaveReport(nb::module_& m) {
  using R = core::SaveReport;
  ReportClass<R>(m, "SaveReport", "The result of a save.")
      .Has("step", &R::step)
      .Has("logical_bytes", &R::logical_bytes,
           "Bytes of all tensors. Shared memory is counted once.")
      .Has("written_bytes", &R::written_bytes, "Payload that this save wrote to the store.")
      .Has("device_bytes", &R::device_bytes,
           "Payload that this save copied from device memory to the host, without digests and "
           "without host copies that were made of tensors before the save.")
      .Has("chunks", &R::chunks)
      .Has("chunks_reused", &R::chunks_reused,
           "Chunks recorded as references to bytes that the store already contained.")
      .Has("seconds", &R::seconds);
}

void BindMergeReport(nb::module_& m) {
  using R = MergedStep;
  ReportClass<R>(m, "MergeReport", "The result of a merge.")
      .Has("step", &R::step)
      .Has("logical_bytes", &R::logical_bytes,
           "Bytes of all tensors of the new step. Shared memory is counted once.")
      .Has("written_bytes", &R::written_bytes, "Payload that the merge wrote to the store.")
      .Has("bytes_read", &R::bytes_read, "Bytes read from storage, including rounding to pages.")
      .Has("chunks", &R::chunks)
      .Has("chunks_reused", &R::chunks_reused,
           "Chunks recorded as references: they are equal in all steps, or their tensor is not "
           "floating-point.")
      .Has("seconds", &R::seconds);
}

void BindStepInfo(nb::module_& m) {
  using R = TaggedStep;
  ReportClass<kv::ParentStep>(m, "ParentStep", "The step from which another one continued.")
      .Has("step", &kv::ParentStep::step,
           "Its number. It may have been deleted or replaced since, or be in another store.")
      .Has("attempt", &kv::ParentStep::attempt, "StepInfo.attempt of it and of its copies.");
  ReportClass<R>(m, "StepInfo", "What is recorded about a step.")
      .Has("step", &R::step)
      .Has("tags", &R::tags)
      .Has("created_unix_ns", &R::created_unix_ns,
           "When it was saved; of a copy, when the source was.")
      .Has("ranks", &R::world_size, "Number of ranks that saved it.")
      .Has("base_step", &R::base_step, "The step with which it was compared.")
      .Has("tensors", &R::tensor_count)
      .Has("values", &R::value_count)
      .Has("logical_bytes", &R::logical_bytes, "Bytes of all tensors; shared ones count once.")
      .Has("written_bytes", &R::written_bytes, "Bytes that the save wrote.")
      .Has("metrics", &R::metrics)
      .Has("note", &R::note)
      .Has("attempt", &R::attempt, "A text that the copies of the step share, and no other step.")
      .Has("parent", &R::parent, "The step from which it continued; None if there is none.")
      .Has("run", &R::run, "32 hex digits, which the steps of a run share (docs/versions.md).");
}

void BindCompactReport(nb::module_& m) {
  using R = kv::CompactReport;
  ReportClass<R>(m, "CompactReport", "The result of a compaction, or of what one would do.")
      .Has("live_bytes", &R::live_bytes, "Payload that steps used before it, each byte once.")
      .Has("segment_bytes", &R::segment_bytes, "Length of all segments before it.")
      .Has("old_segments", &R::old_segments, "Segments that were rewritten.")
      .Has("old_bytes", &R::old_bytes, "Their length.")
      .Has("moved_bytes", &R::moved_bytes, "The part of their payload that steps use.")
      .Has("new_segments", &R::new_segments, "Segments that were written.")
      .Has("new_bytes", &R::new_bytes, "Their length.")
      .Has("folded_chunks", &R::folded_chunks, "Chunks that were written without their deltas.")
      .Has("compressed_chunks", &R::compressed_chunks)
      .Has(
          "waiting_bytes", &R::waiting_bytes,
          "Length of the files, also of earlier changes, that no step uses and that a later change "
          "or the close of the store removes after the grace period.")
      .Has("rewritten_steps", &R::rewritten_steps, "Steps whose records were rewritten.");
}

void BindCopiedStep(nb::module_& m) {
  using R = kv::CopiedStep;
  ReportClass<R>(m, "CopiedStep", "What happened to one step of a copy.")
      .Has("step", &R::step)
      .Has(
          "outcome", &R::outcome,
          "'copied'; 'present', if the target had it already; 'deleted', if the source was deleted "
          "during the copy, so that the target does not have it.")
      .Has("logical_bytes", &R::logical_bytes, "Bytes of all chunks of the step.")
      .Has("copied_segments", &R::copied_segments, "Segments that were transferred.")
      .Has("copied_bytes", &R::copied_bytes, "Their length.")
      .Has("reused_segments", &R::reused_segments, "Segments that the target had.");
}

void BindDiff(nb::module_& m) {
  using Change = core::KeyChange;
  using R = core::Diff;
  ReportClass<Change>(m, "KeyChange", "One key that differs between two steps.")
      .Has("kind", &Change::kind, "'added', 'removed' or 'changed'.")
      .Has("fqn", &Change::fqn)
      .Has("is_tensor", &Change::is_tensor)
      .Has("changed_bytes", &Change::changed_bytes,
           "Bytes of the chunks that differ; all bytes of a key that was added or removed.")
      .Has("total_bytes", &Change::total_bytes)
      .Has("detail", &Change::detail, "A change of dtype or shape, or the old and new value.");
  ReportClass<R>(m, "Diff", "The differences between two steps.")
      .Has("changes", &R::changes)
      .Has("unchanged_keys", &R::unchanged_keys)
      .def_prop_ro("added", &FqnsOf<Change::Kind::kAdded>, "FQNs that are only in the second step.")
      .def_prop_ro("removed", &FqnsOf<Change::Kind::kRemoved>,
                   "FQNs that are only in the first step.")
      .def_prop_ro("changed", &FqnsOf<Change::Kind::kChanged>,
                   "FQNs that are in both steps, with different contents, dtype or shape.");
}

void BindStatistics(nb::module_& m) {
  using R = core::StoredStatistics;
  ReportClass<R>(m, "TensorStatistics",
                 "What a save recorded about the values of a tensor (SaveTuning.statistics).")
      .Has("count", &R::count,
           "Number of values. A float4_e2m1fn_x2 element has two; a complex number counts as its "
           "magnitude.")
      .Has("zeros", &R::zeros)
      .Has("nans", &R::nans)
      .Has("infs", &R::infs, "Positive and negative.")
      .Has("min", &R::min, "Infinities included; NaN if every value is a NaN.")
      .Has("max", &R::max, "Infinities included; NaN if every value is a NaN.")
      .Has("mean", &R::mean, "Mean of the finite values; NaN if there are none.")
      .def_prop_ro("abs_max", &R::abs_max, "The largest magnitude.");
}

// What the package turns into its own reports and errors.
void BindParts(nb::module_& m) {
  nb::class_<core::LoadReport>(m, "ReadReport")
      .def(nb::init<uint64_t, double>(), nb::arg("bytes_read"), nb::arg("seconds"))
      .def_ro("bytes_read", &core::LoadReport::bytes_read)
      .def_ro("seconds", &core::LoadReport::seconds);
  ReportClass<core::UpdateReport>(m, "UpdateReport")
      .Has("changed", &core::UpdateReport::changed)
      .Has("compared_bytes", &core::UpdateReport::compared_bytes)
      .Has("bytes_read", &core::UpdateReport::bytes_read)
      .Has("seconds", &core::UpdateReport::seconds);
}

}  // namespace

MergedStep::MergedStep(const core::MergeReport& report)
    : SaveReport{.step = report.step.step,
                 .logical_bytes = report.step.logical_bytes,
                 .written_bytes = report.step.written_bytes,
                 .device_bytes = 0,
                 .chunks = report.step.chunk_count,
                 .chunks_reused = report.step.reused_chunk_count,
                 .seconds = report.seconds},
      bytes_read(report.bytes_read) {}

void BindReports(nb::module_& m) {
  BindSaveReport(m);
  BindMergeReport(m);
  BindStepInfo(m);
  BindCompactReport(m);
  BindCopiedStep(m);
  BindDiff(m);
  BindStatistics(m);
  BindParts(m);
}

}  // namespace cairn::python
