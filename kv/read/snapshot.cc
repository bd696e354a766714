// Reading committed state.

#include "kv/read/snapshot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "kv/read/internal/snapshot_state.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/read_scheduler.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv {

Snapshot::Snapshot(std::unique_ptr<const internal::SnapshotState> state)
    : state_(std::move(state)) {}
Snapshot::~Snapshot() = default;

const std::vector<uint64_t>& Snapshot::step_numbers() const {
  return state_->root->steps.numbers();
}

Result<std::vector<StepInfo>> Snapshot::Steps() const {
  CAIRN_TRY_ASSIGN(const auto entries, state_->AllEntries());
  std::vector<StepInfo> steps;
  for (const auto& entry : entries) steps.push_back(entry->info);
  return steps;
}

Result<StepInfo> Snapshot::FindStep(std::optional<uint64_t> step) const {
  const internal::StepList& steps = state_->root->steps;
  if (steps.numbers().empty()) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .message = "the store has no steps yet; save one first",
                      .file = state_->storage->address(),
                      .step = step});
  }
  CAIRN_TRY_ASSIGN(const auto entry, step ? state_->FindEntry(*step) : steps.Latest());
  if (entry != nullptr) return entry->info;
  const std::vector<uint64_t>& numbers = steps.numbers();
  const size_t shown = std::min<size_t>(numbers.size(), 8);
  return Fail(
      Error{.code = ErrorCode::kNotFound,
            .hint = Hint::kListSteps,
            .message = fmt::format(
                "no such step; the store has {}{}", shown < numbers.size() ? "..., " : "",
                fmt::join(numbers.end() - static_cast<ptrdiff_t>(shown), numbers.end(), ", ")),
            .file = state_->storage->address(),
            .step = step});
}

Result<std::vector<uint64_t>> Snapshot::StepsToDelete(const RetentionPolicy& policy,
                                                      std::optional<uint64_t> newest) const {
  CAIRN_TRY_ASSIGN(const std::vector<StepInfo> steps, Steps());
  if (steps.empty()) return std::vector<uint64_t>();
  if (!newest && LacksMetrics(policy, steps)) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .hint = Hint::kListSteps,
                      .message = fmt::format("no step has a value of the metric '{}', so none "
                                             "would be kept",
                                             policy.keep_best.front().metric),
                      .file = state_->storage->address()});
  }
  CAIRN_TRY_ASSIGN(const StepInfo latest, FindStep({}));
  return kv::StepsToDelete(policy, steps, tags(), newest.value_or(latest.step), newest.has_value());
}

const Tags& Snapshot::tags() const { return state_->root->root.tags; }

const RetentionPolicy& Snapshot::retention() const { return state_->root->root.retention; }

bool Snapshot::compresses_saves() const { return state_->root->root.compress; }

Result<uint64_t> Snapshot::FindTag(const std::string& name) const {
  const auto found = tags().find(name);
  if (found != tags().end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& [tag, step] : tags()) {
    if (names.size() < 8) names.push_back(tag);
  }
  return Fail(Error{.code = ErrorCode::kNotFound,
                    .message = names.empty()
                                   ? fmt::format("no step has the tag '{}', or any other", name)
                                   : fmt::format("no step has the tag '{}'; the store has {}{}",
                                                 name, fmt::join(names, ", "),
                                                 names.size() < tags().size() ? ", ..." : ""),
                    .file = state_->storage->address()});
}

Result<void> Snapshot::Scan(Column column, const StepInfo& step, std::string_view prefix,
                            const ScanCallback& callback) const {
  const std::string first_key = TableKey(column, prefix);
  return state_->Scan(step, first_key, first_key,
                      [&](std::string_view key, std::span<const std::byte> record) {
                        return callback(key.substr(1), record);
                      });
}

Result<void> Snapshot::ScanFrom(Column column, const StepInfo& step, std::string_view first_key,
                                const ScanCallback& callback) const {
  return state_->Scan(step, TableKey(column, first_key), ColumnPrefix(column),
                      [&](std::string_view key, std::span<const std::byte> record) {
                        return callback(key.substr(1), record);
                      });
}

Result<std::optional<std::vector<std::byte>>> Snapshot::Get(Column column, const StepInfo& step,
                                                            std::string_view key) const {
  return state_->Get(step, TableKey(column, key));
}

Result<std::optional<std::vector<std::byte>>> Snapshot::GetStructure(const StepInfo& step) const {
  return Get(Column::kStructures, step, "");
}

namespace {

// Each table names the tables of its step after it, so tables that two steps share are the oldest
// ones of both. These hide and show the same records in both, so only keys of the other tables can
// differ.

using Tables = std::span<const std::shared_ptr<const internal::TableReader>>;

/// Adds the FQNs of the keys of a table.
Result<void> AddFqns(const internal::TableReader& table, std::vector<std::string>& fqns) {
  const auto iterator = table.NewIterator(internal::TableAccess::kBulk);
  for (const Column column : {Column::kTensors, Column::kChunks, Column::kValues}) {
    const std::string prefix = ColumnPrefix(column);
    CAIRN_TRY(iterator->Seek(prefix));
    while (iterator->Valid() && iterator->key().starts_with(prefix)) {
      const std::string_view key = iterator->key().substr(prefix.size());
      const std::string_view fqn = key.substr(0, key.find('\0'));
      if (fqns.empty() || fqns.back() != fqn) fqns.emplace_back(fqn);
      CAIRN_TRY(iterator->Next());
    }
  }
  return {};
}

/// The tables that only one of two steps has.
struct Unshared {
  Unshared(const internal::TableStack& a, const internal::TableStack& b)
      : in_a(a.tables()), in_b(b.tables()) {
    while (!in_a.empty() && !in_b.empty() && in_a.back()->info().id == in_b.back()->info().id) {
      in_a = in_a.first(in_a.size() - 1);
      in_b = in_b.first(in_b.size() - 1);
    }
    shares_any = in_a.size() < a.tables().size();
  }
  Tables in_a;
  Tables in_b;
  bool shares_any = false;
};

}  // namespace

Result<std::optional<std::vector<std::string>>> Snapshot::FindUnsharedFqns(
    const StepInfo& a, const StepInfo& b) const {
  CAIRN_TRY_ASSIGN(const auto open_a, state_->Open(a));
  CAIRN_TRY_ASSIGN(const auto open_b, state_->Open(b));
  const Unshared unshared(open_a->tables, open_b->tables);
  if (!unshared.shares_any) return std::nullopt;
  std::vector<std::string> fqns;
  for (const Tables tables : {unshared.in_a, unshared.in_b}) {
    for (const auto& table : tables) CAIRN_TRY(AddFqns(*table, fqns));
  }
  std::ranges::sort(fqns);
  fqns.erase(std::ranges::unique(fqns).begin(), fqns.end());
  return fqns;
}

Result<bool> Snapshot::ScanUnshared(Column column, const StepInfo& base, const StepInfo& step,
                                    const ScanCallback& callback) const {
  CAIRN_TRY_ASSIGN(const auto open_base, state_->Open(base));
  CAIRN_TRY_ASSIGN(const auto open, state_->Open(step));
  const Unshared unshared(open_base->tables, open->tables);
  if (!unshared.shares_any) return false;
  const std::string prefix = ColumnPrefix(column);
  internal::MergeIterator in_base(unshared.in_a, internal::TableAccess::kBulk);
  internal::MergeIterator in_step(unshared.in_b, internal::TableAccess::kBulk);
  CAIRN_TRY(in_base.Seek(prefix));
  CAIRN_TRY(in_step.Seek(prefix));
  const auto has_key = [&](const internal::MergeIterator& iterator) {
    return iterator.Valid() && iterator.key().starts_with(prefix);
  };
  AlignedBytes aligned;
  while (has_key(in_base) || has_key(in_step)) {
    const int order = !has_key(in_base)   ? 1
                      : !has_key(in_step) ? -1
                                          : in_base.key().compare(in_step.key());
    bool more = true;
    if (order < 0) {
      // Only a table of the base has it, so an older table of the step decides.
      const std::string key(in_base.key());
      CAIRN_TRY_ASSIGN(const auto record, open->tables.Get(key));
      CAIRN_TRY_ASSIGN(more, callback(key.substr(1), record ? std::span<const std::byte>(*record)
                                                            : std::span<const std::byte>()));
    } else {
      const auto value = in_step.value();
      const std::string_view text(reinterpret_cast<const char*>(value.data()), value.size());
      CAIRN_TRY_ASSIGN(
          more, callback(in_step.key().substr(1),
                         text.empty() ? std::span<const std::byte>() : aligned.Assign(text)));
    }
    if (!more) return true;
    if (order <= 0) CAIRN_TRY(in_base.Next());
    if (order >= 0) CAIRN_TRY(in_step.Next());
  }
  return true;
}

Result<SegmentInfo> Snapshot::FindSegment(uint64_t segment_id) const {
  CAIRN_TRY(state_->FindSegment(segment_id));
  const std::string key = NumberKey(segment_id);
  CAIRN_TRY_ASSIGN(const auto entries, state_->AllEntries());
  for (const auto& entry : entries) {
    CAIRN_TRY_ASSIGN(const auto record, Get(Column::kSegments, entry->info, key));
    if (record) return internal::DecodeSegment(*record);
  }
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = fmt::format("no step has a record of segment {:016x}", segment_id),
                    .file = state_->storage->address()});
}

Result<std::vector<SegmentInfo>> Snapshot::SegmentsOf(const StepInfo& step) const {
  return state_->SegmentsOf(step);
}

Result<std::vector<SegmentInfo>> Snapshot::FurtherSegmentsOf(
    const StepInfo& step, std::unordered_set<uint64_t>& known) const {
  std::vector<SegmentInfo> segments;
  CAIRN_TRY_ASSIGN(const auto entry, state_->FindEntry(step.step));
  const bool are_known = entry != nullptr && !entry->usage_in_tables &&
                         std::ranges::all_of(entry->usage, [&](const internal::SegmentUse& use) {
                           return known.contains(use.segment.id);
                         });
  if (are_known) return segments;
  CAIRN_TRY_ASSIGN(segments, SegmentsOf(step));
  std::erase_if(segments, [&](const SegmentInfo& segment) {
    return !known.insert(segment.segment_id).second;
  });
  return segments;
}

Result<std::vector<SegmentInfo>> Snapshot::Segments() const {
  std::map<uint64_t, SegmentInfo> segments;
  CAIRN_TRY_ASSIGN(const auto entries, state_->AllEntries());
  for (const auto& entry : entries) {
    CAIRN_TRY_ASSIGN(std::vector<SegmentInfo> of_step, SegmentsOf(entry->info));
    for (SegmentInfo& info : of_step) {
      const auto [known, is_new] = segments.try_emplace(info.segment_id, info);
      if (is_new || known->second.id_tail == info.id_tail) continue;
      // Records of one step would seem to refer to the segment of the other.
      return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                        .message = fmt::format("two segments of the store have ids that begin with "
                                               "{:016x}; copy this step to another store and "
                                               "delete it here",
                                               info.segment_id),
                        .file = state_->storage->address(),
                        .step = entry->info.step});
    }
  }
  std::vector<SegmentInfo> all;
  for (auto& [id, info] : segments) all.push_back(std::move(info));
  return all;
}

Result<std::vector<Usage>> Snapshot::SegmentUsage() const {
  std::vector<Usage> usage;
  CAIRN_TRY_ASSIGN(const auto entries, state_->AllEntries());
  for (const auto& entry : entries) {
    std::vector<internal::SegmentUse> of_step = entry->usage;
    if (entry->usage_in_tables) {
      CAIRN_TRY_ASSIGN(const auto open, state_->Open(entry->info));
      CAIRN_TRY_ASSIGN(of_step, state_->UsageOf(*open));
    }
    for (const internal::SegmentUse& use : of_step) {
      usage.push_back({.segment_id = use.segment.id,
                       .generation = entry->info.generation,
                       .live_bytes = use.live_bytes});
    }
  }
  return usage;
}

Result<uint64_t> Snapshot::Read(std::span<const ReadRange> ranges, uint32_t threads,
                                const RangeCallback& arrived) const {
  const internal::SegmentSource source{
      .storage = *state_->storage, .queues = *state_->queues, .open = [this](uint64_t segment_id) {
        return state_->OpenSegment(segment_id);
      }};
  const auto is_zeros = [](const ReadRange& range) { return range.segment_id == 0; };
  if (std::ranges::any_of(ranges, is_zeros)) {
    std::vector<size_t> zeros;
    std::vector<size_t> stored;  // indices in `ranges`
    std::vector<ReadRange> others;
    for (size_t i = 0; i < ranges.size(); ++i) {
      (is_zeros(ranges[i]) ? zeros : stored).push_back(i);
      if (!is_zeros(ranges[i])) others.push_back(ranges[i]);
    }
    CAIRN_TRY(internal::ReadZeros(ranges, zeros, threads, arrived));
    return Read(others, threads, [&](size_t i, std::span<const std::byte> bytes) {
      return arrived(stored[i], bytes);
    });
  }
  auto read_bytes = internal::ReadRanges(ranges, *state_->options.io, threads, *state_->read_pool,
                                         source, arrived);
  if (read_bytes || read_bytes.error().code != ErrorCode::kNotFound) return read_bytes;
  return Fail(state_->Explain(std::move(read_bytes).error()));
}

namespace {

Error TooShort(const std::string& path) {
  return {.code = ErrorCode::kDataLoss, .message = "the segment is too short", .file = path};
}

}  // namespace

Result<std::shared_ptr<const Mapping>> Snapshot::MapObject(uint64_t segment_id,
                                                           const std::string& path) const {
  CAIRN_TRY_ASSIGN(const SegmentInfo info, FindSegment(segment_id));
  if (info.file_bytes < internal::kSegmentHeaderBytes) return Fail(TooShort(path));
  void* const memory = ::mmap(nullptr, info.file_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Fail(SystemError(errno, "cannot allocate memory for the segment", path));
  }
  const std::span bytes(static_cast<std::byte*>(memory), info.file_bytes);
  auto mapping = std::make_shared<const Mapping>(bytes);
  const ReadRange range{.segment_id = segment_id, .offset_bytes = 0, .target = bytes};
  CAIRN_TRY(
      Read({&range, 1}, 1, [](size_t, std::span<const std::byte>) { return Result<void>(); }));
  return mapping;
}

Result<std::shared_ptr<const Mapping>> Snapshot::Map(uint64_t segment_id) const {
  CAIRN_TRY_ASSIGN(const auto file, state_->OpenSegment(segment_id));
  if (file->is_object) return MapObject(segment_id, file->path);
  CAIRN_TRY_ASSIGN(const uint64_t size_bytes, file->buffered.SizeBytes());
  if (size_bytes < internal::kSegmentHeaderBytes) return Fail(TooShort(file->path));
  // The mapping is private and writable, because torch's tensors cannot be read-only: a caller that
  // writes to one changes its own copy of a page and does not crash. The file cannot be changed
  // through it.
  void* memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                        file->buffered.fd(), 0);
  if (memory == MAP_FAILED) {
    return Fail(SystemError(errno, "cannot map the segment", file->path));
  }
  return std::make_shared<const Mapping>(
      std::span(static_cast<const std::byte*>(memory), size_bytes));
}

}  // namespace cairn::kv
