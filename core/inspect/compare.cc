// Compares keys, records and chunk digests; reads payload only if the boxes of chunks differ. Reads
// the chunk records only of keys that have a record in a table which the steps do not share, and,
// if these are few, all keys of only one of the steps.

#include "core/inspect/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <ranges>
#include <tuple>

#include "core/inspect/internal/list.h"
#include "core/load/internal/load.h"
#include "core/load/internal/read_boxes.h"
#include "core/load/load_options.h"
#include "core/step/contents.h"
#include "core/step/internal/lookup.h"
#include "kv/base/mutex.h"
#include "kv/io/worker_pool.h"

namespace cairn::core {
namespace internal {
namespace {

constexpr uint64_t kReadBytes = 8 << 20;
// Memory that is reserved for as many items as a step states, which may be damaged.
constexpr uint64_t kMaxReserved = 1 << 16;
// Also on fewer cores: threads that read records wait for the storage.
constexpr uint32_t kMinThreads = 4;

// A key of one step, which is either a tensor or a value.
struct Entry {
  std::string_view fqn;
  const TensorInfo* tensor = nullptr;
  const Value* value = nullptr;
  const TensorInfo* bytes = nullptr;  // those of a ChunkedValue
};

std::vector<Entry> EntriesOf(const Contents& contents) {
  std::vector<Entry> entries;
  entries.reserve(contents.tensors.size() + contents.values.size());
  for (const TensorInfo& tensor : contents.tensors) {
    if (!tensor.hidden) entries.push_back({tensor.fqn, &tensor, nullptr});
  }
  const auto tensor_count = std::ssize(entries);
  for (const ValueInfo& value : contents.values) {
    const bool is_chunked = std::holds_alternative<ChunkedValue>(value.value);
    entries.push_back({value.fqn, nullptr, &value.value,
                       is_chunked ? FindByName(contents.tensors, value.fqn) : nullptr});
  }
  std::ranges::inplace_merge(entries, entries.begin() + tensor_count, {}, &Entry::fqn);
  return entries;
}

std::string Describe(const Entry& entry) {
  if (entry.value != nullptr) return FormatValue(*entry.value);
  return fmt::format("{} {}", schema::DTypeName(entry.tensor->dtype),
                     FormatNumbers(entry.tensor->shape));
}

KeyChange WholeChange(KeyChange::Kind kind, const Entry& entry, std::string detail) {
  const TensorInfo* const tensor = entry.tensor != nullptr ? entry.tensor : entry.bytes;
  const uint64_t bytes = tensor != nullptr ? tensor->nbytes : 0;
  return KeyChange{.kind = kind,
                   .fqn = std::string(entry.fqn),
                   .is_tensor = entry.tensor != nullptr,
                   .changed_bytes = bytes,
                   .total_bytes = bytes,
                   .detail = std::move(detail)};
}

KeyChange WholeChange(KeyChange::Kind kind, const Entry& entry) {
  return WholeChange(kind, entry, Describe(entry));
}

/// The data of a chunk that the comparison needs.
struct ChunkSummary {
  uint64_t box_checksum = 0;
  uint64_t length_bytes = 0;
  uint64_t page_bytes = 0;
  kv::Digest digest;
};

/// The summaries of the chunks of many tensors.
class ChunkSummaries {
 public:
  /// Reads the chunk records of all `tensors`, which ascend, in one scan.
  static Result<ChunkSummaries> Read(const StepView& view, std::span<const TensorInfo> tensors) {
    ChunkSummaries summaries;
    summaries.all_.reserve(std::min(view.step.chunk_count, kMaxReserved));
    summaries.ends_.reserve(tensors.size());
    std::vector<uint64_t> box;
    CAIRN_TRY(ForEachChunkOf(view, tensors, [&](size_t i, const ChunkInfo& chunk) -> Result<void> {
      summaries.EndBefore(i);
      box.assign(chunk.box.offsets.begin(), chunk.box.offsets.end());
      box.insert(box.end(), chunk.box.sizes.begin(), chunk.box.sizes.end());
      summaries.all_.push_back({.box_checksum = kv::Checksum64(std::as_bytes(std::span(box))),
                                .length_bytes = chunk.length_bytes(),
                                .page_bytes = chunk.extents.page_bytes(),
                                .digest = chunk.digest});
      return {};
    }));
    summaries.EndBefore(tensors.size());
    return summaries;
  }

  /// Returns the chunks of the tensor with index `i`.
  std::span<const ChunkSummary> of(size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::span(all_).subspan(begin, ends_[i] - begin);
  }

 private:
  /// Later chunks belong to tensor `i` or later tensors.
  void EndBefore(size_t i) {
    while (ends_.size() < i) ends_.push_back(all_.size());
  }

  std::vector<ChunkSummary> all_;  // in the order of the tensors
  std::vector<size_t> ends_;       // in `all_`, by tensor
};

/// Returns the bytes of the chunks that differ; empty if the two steps cut the tensor, or chunks
/// into pages, differently.
std::optional<uint64_t> ChangedBytes(std::span<const ChunkSummary> a,
                                     std::span<const ChunkSummary> b) {
  const auto same_box = [](const ChunkSummary& x, const ChunkSummary& y) {
    return x.box_checksum == y.box_checksum && x.length_bytes == y.length_bytes &&
           x.page_bytes == y.page_bytes;
  };
  if (!std::ranges::equal(a, b, same_box)) return std::nullopt;
  uint64_t changed = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].digest != b[i].digest) changed += a[i].length_bytes;
  }
  return changed;
}

/// Does so for the chunks of one tensor.
Result<std::optional<uint64_t>> ChangedByDigest(const StepView& view_a, const TensorInfo& a,
                                                const StepView& view_b, const TensorInfo& b) {
  CAIRN_TRY_ASSIGN(const auto chunks_a, ChunkSummaries::Read(view_a, {&a, 1}));
  CAIRN_TRY_ASSIGN(const auto chunks_b, ChunkSummaries::Read(view_b, {&b, 1}));
  return ChangedBytes(chunks_a.of(0), chunks_b.of(0));
}

// Reads both tensors and returns the bytes of the pages that differ in their row-major form.
Result<uint64_t> ChangedByReading(const StepView& view_a, const TensorInfo& a,
                                  const StepView& view_b) {
  const auto load_from = [](const StepView& view) -> BoxLoad {
    return [&view](std::span<const LoadRequest> requests) { return RunLoad(view, requests, {}); };
  };
  const BoxLoad loads[] = {load_from(view_a), load_from(view_b)};
  uint64_t changed = 0;
  CAIRN_TRY(ReadBoxes(loads, {&a, 1}, kReadBytes, [&](std::span<const LoadedBox> boxes) {
    for (const auto& [bytes_a, bytes_b] : boxes | std::views::transform(&LoadedBox::bytes)) {
      for (uint64_t at = 0; at < bytes_a.size(); at += kv::kPageBytes) {
        const uint64_t count = std::min<uint64_t>(kv::kPageBytes, bytes_a.size() - at);
        const auto page_a = bytes_a.subspan(at, count);
        if (!std::ranges::equal(page_a, bytes_b.subspan(at, count))) changed += count;
      }
    }
    return Result<void>();
  }));
  return changed;
}

// Does so for tensors of which CheckRepeats refuses one: reads what both repeat once.
Result<uint64_t> ChangedByReadingOnce(const StepView& view_a, TensorInfo a, const StepView& view_b,
                                      TensorInfo b) {
  uint64_t times = 1;
  for (size_t d = 0; d < a.shape.size(); ++d) {
    const auto repeats = [d](const TensorInfo& t) { return t.alias_of && t.alias_strides[d] == 0; };
    if (!repeats(a) || !repeats(b)) continue;
    times *= a.shape[d];
    a.shape[d] = b.shape[d] = 1;
  }
  for (TensorInfo* tensor : {&a, &b}) {
    tensor->nbytes /= times;
    CAIRN_TRY(CheckRepeats({tensor, 1}));
  }
  CAIRN_TRY_ASSIGN(const uint64_t changed, ChangedByReading(view_a, a, view_b));
  return changed * times;
}

// Holds `reading` while it reads payload: a read uses all cores, and one at a time bounds memory.
Result<uint64_t> ChangedBytes(const StepView& view_a, const TensorInfo& a, const StepView& view_b,
                              const TensorInfo& b, Mutex& reading) {
  if (!a.alias_of && !b.alias_of) {
    CAIRN_TRY_ASSIGN(const auto changed, ChangedByDigest(view_a, a, view_b, b));
    if (changed) return *changed;
  } else if (a.alias_of == b.alias_of && a.alias_offset_bytes == b.alias_offset_bytes &&
             a.alias_strides == b.alias_strides) {
    // The same part of the same owner is equal if the complete owner is. Tied weights are the
    // complete owner.
    CAIRN_TRY_ASSIGN(const TensorInfo owner_a, FindOwner(view_a, a));
    CAIRN_TRY_ASSIGN(const TensorInfo owner_b, FindOwner(view_b, b));
    CAIRN_TRY_ASSIGN(const auto changed, ChangedByDigest(view_a, owner_a, view_b, owner_b));
    if (changed && (*changed == 0 || IsWholeOwner(a, owner_a))) return *changed;
  }
  const MutexLock lock(reading);
  if (!CheckRepeats({&a, 1}) || !CheckRepeats({&b, 1})) {
    return ChangedByReadingOnce(view_a, a, view_b, b);
  }
  return ChangedByReading(view_a, a, view_b);
}

// Values are equal if their records are: NaN equals itself, 0.0 does not equal -0.0.
Result<bool> SameValue(const Value& a, const Value& b) {
  CAIRN_TRY_ASSIGN(const auto record_a, EncodeValue(a));
  CAIRN_TRY_ASSIGN(const auto record_b, EncodeValue(b));
  return record_a == record_b;
}

// Returns whether values are equal of which one may be stored as chunks, and the other not.
Result<bool> SameValue(const StepView& view_a, const Entry& a, const StepView& view_b,
                       const Entry& b, Mutex& reading) {
  if ((a.bytes == nullptr) == (b.bytes == nullptr)) return SameValue(*a.value, *b.value);
  const auto& [view, chunked, other] =
      a.bytes != nullptr ? std::tie(view_a, a, *b.value) : std::tie(view_b, b, *a.value);
  if (BytesOf(other).empty()) return false;
  CAIRN_TRY_ASSIGN(const ChunkedValue expected, WithoutBytes(other));
  if (*chunked.value != Value(expected)) return false;
  ValueInfo loaded{.fqn = std::string(chunked.fqn), .value = *chunked.value};
  const MutexLock lock(reading);
  CAIRN_TRY(RunLoadValues(view, {&loaded, 1}, {}));
  return SameValue(loaded.value, other);
}

// Returns the change of a key from one entry to the other; empty if there is none.
Result<std::optional<KeyChange>> CompareEntries(const StepView& view_a, const Entry& a,
                                                const StepView& view_b, const Entry& b,
                                                Mutex& reading) {
  KeyChange change =
      WholeChange(KeyChange::Kind::kChanged, b, fmt::format("{} -> {}", Describe(a), Describe(b)));
  if (a.value != nullptr && b.value != nullptr) {
    CAIRN_TRY_ASSIGN(bool same, SameValue(view_a, a, view_b, b, reading));
    if (same && a.bytes != nullptr && b.bytes != nullptr) {
      CAIRN_TRY_ASSIGN(change.changed_bytes,
                       ChangedBytes(view_a, *a.bytes, view_b, *b.bytes, reading));
      same = change.changed_bytes == 0;
    }
    if (same) return std::nullopt;
    return change;
  }
  if (a.tensor == nullptr || b.tensor == nullptr) return change;
  if (a.tensor->dtype != b.tensor->dtype || a.tensor->shape != b.tensor->shape) {
    if (a.tensor->shape == b.tensor->shape) {
      change.detail = fmt::format("dtype {} -> {}", schema::DTypeName(a.tensor->dtype),
                                  schema::DTypeName(b.tensor->dtype));
    } else if (a.tensor->dtype == b.tensor->dtype) {
      change.detail = fmt::format("shape {} -> {}", FormatNumbers(a.tensor->shape),
                                  FormatNumbers(b.tensor->shape));
    }
    return change;
  }
  CAIRN_TRY_ASSIGN(change.changed_bytes,
                   ChangedBytes(view_a, *a.tensor, view_b, *b.tensor, reading));
  change.detail.clear();
  if (change.changed_bytes == 0) return std::nullopt;
  return change;
}

/// A key that both steps have.
struct KeyInBoth {
  Entry a;
  Entry b;
  bool is_compared = false;

  /// True if the digests of its chunks may decide.
  bool has_comparable_chunks() const {
    return a.tensor != nullptr && b.tensor != nullptr && a.tensor->dtype == b.tensor->dtype &&
           a.tensor->shape == b.tensor->shape && !a.tensor->alias_of && !b.tensor->alias_of;
  }
};

/// Returns the tensors of one side of `keys`. They are copies if `contents` has further tensors.
std::span<const TensorInfo> TensorsOf(std::span<KeyInBoth* const> keys, Entry KeyInBoth::* side,
                                      const Contents& contents, std::vector<TensorInfo>& copies) {
  if (keys.size() == contents.tensors.size()) return contents.tensors;
  for (const KeyInBoth* key : keys) copies.push_back(*(key->*side).tensor);
  return copies;
}

/// Adds the change of a key to the changes of earlier keys.
void AddChange(std::optional<KeyChange> change, Diff& diff) {
  if (change) {
    diff.changes.push_back(*std::move(change));
  } else {
    ++diff.unchanged_keys;
  }
}

/// Sorts the changes, of which the first `count` and the others are in key order.
void MergeChanges(size_t count, Diff& diff) {
  std::ranges::inplace_merge(diff.changes, diff.changes.begin() + static_cast<ptrdiff_t>(count), {},
                             &KeyChange::fqn);
}

/// Compares the keys whose chunks are comparable and cut in the same way. For many keys, two scans
/// cost much less than lookups.
Result<void> CompareByScan(const StepView& view_a, const Contents& contents_a,
                           const StepView& view_b, const Contents& contents_b,
                           std::span<KeyInBoth> keys, Diff& diff) {
  constexpr size_t kMinKeys = 256;
  std::vector<KeyInBoth*> comparable;
  for (KeyInBoth& key : keys) {
    if (key.has_comparable_chunks()) comparable.push_back(&key);
  }
  if (comparable.size() < kMinKeys) return {};
  std::vector<TensorInfo> copies_a, copies_b;
  const auto tensors_a = TensorsOf(comparable, &KeyInBoth::a, contents_a, copies_a);
  const auto tensors_b = TensorsOf(comparable, &KeyInBoth::b, contents_b, copies_b);
  Result<ChunkSummaries> a, b;
  kv::WorkerPool pool(2);
  pool.Run(2, [&](size_t i, size_t) {
    (i == 0 ? a : b) =
        i == 0 ? ChunkSummaries::Read(view_a, tensors_a) : ChunkSummaries::Read(view_b, tensors_b);
  });
  CAIRN_TRY(a);
  CAIRN_TRY(b);
  const size_t count_before = diff.changes.size();
  diff.changes.reserve(count_before + comparable.size());
  for (size_t i = 0; i < comparable.size(); ++i) {
    KeyInBoth* const key = comparable[i];
    const auto changed_bytes = ChangedBytes(a->of(i), b->of(i));
    if (!changed_bytes) continue;
    std::optional<KeyChange> change;
    if (*changed_bytes > 0) {
      change = WholeChange(KeyChange::Kind::kChanged, key->b, {});
      change->changed_bytes = *changed_bytes;
    }
    AddChange(std::move(change), diff);
    key->is_compared = true;
  }
  MergeChanges(count_before, diff);
  return {};
}

/// Compares keys one by one.
Result<void> CompareKeys(const StepView& view_a, const StepView& view_b,
                         std::span<const KeyInBoth> keys, Diff& diff) {
  if (keys.empty()) return {};
  std::vector<Result<std::optional<KeyChange>>> changes(keys.size());
  kv::WorkerPool pool(std::min<size_t>(kv::WorkerThreads(kMinThreads), keys.size()));
  Mutex reading;
  std::atomic<bool> failed = false;
  pool.Run(keys.size(), [&](size_t i, size_t) {
    if (failed) return;
    changes[i] = CompareEntries(view_a, keys[i].a, view_b, keys[i].b, reading);
    if (!changes[i]) failed = true;
  });
  const size_t count_before = diff.changes.size();
  for (auto& compared : changes) {
    CAIRN_TRY_ASSIGN(auto change, std::move(compared));
    AddChange(std::move(change), diff);
  }
  MergeChanges(count_before, diff);
  return {};
}

/// The keys that may differ between two steps.
class Candidates {
 public:
  static Result<Candidates> Find(const StepView& a, const StepView& b) {
    Candidates candidates;
    CAIRN_TRY_ASSIGN(candidates.fqns_, a.snapshot->FindUnsharedFqns(a.step, b.step));
    return candidates;
  }

  /// An alias may differ if the tensor that has its bytes may.
  bool Contain(const Entry& entry) const {
    if (!fqns_ || std::ranges::binary_search(*fqns_, entry.fqn)) return true;
    return entry.tensor != nullptr && entry.tensor->alias_of &&
           std::ranges::binary_search(*fqns_, *entry.tensor->alias_of);
  }

  /// Returns whether so many keys may differ that List scans all of them in any case.
  bool AreMany(const StepView& view) const {
    return !fqns_ || fqns_->size() * kLookupCost > view.step.tensor_count;
  }

  /// Lists all keys of a step that may differ, and possibly others. `others` are the keys of the
  /// other step that may differ: records that the steps share need not be searched for aliases
  /// again.
  Result<Contents> List(const StepView& view, const KeyPatterns& patterns,
                        std::span<const Entry> others) const {
    if (!fqns_ || (fqns_->size() + others.size()) * kLookupCost > view.step.tensor_count) {
      return ListLeaves(view, patterns);
    }
    std::vector<std::string> names = *fqns_;
    for (const Entry& entry : others) names.emplace_back(entry.fqn);
    std::ranges::sort(names);
    names.erase(std::ranges::unique(names).begin(), names.end());
    return FindLeaves(view, patterns, names);
  }

 private:
  static constexpr uint64_t kLookupCost = 16;  // in records of a scan

  std::optional<std::vector<std::string>> fqns_;  // sorted; nothing: all keys may differ
};

Result<Diff> CompareViews(const StepView& view_a, const StepView& view_b,
                          const KeyPatterns& patterns) {
  CAIRN_TRY_ASSIGN(const Candidates candidates, Candidates::Find(view_a, view_b));
  const auto is_shared = [&](const Entry& entry) { return !candidates.Contain(entry); };
  Result<Contents> contents_a, contents_b;
  const bool are_many = candidates.AreMany(view_a);
  kv::WorkerPool pool(2);
  pool.Run(are_many ? 2 : 1, [&](size_t i, size_t) {
    (i == 0 ? contents_b : contents_a) = ListLeaves(i == 0 ? view_b : view_a, patterns);
  });
  CAIRN_TRY(contents_b);
  std::vector<Entry> b = EntriesOf(*contents_b);
  Diff diff{.changes = {}, .unchanged_keys = std::erase_if(b, is_shared)};
  if (!are_many) contents_a = candidates.List(view_a, patterns, b);
  CAIRN_TRY(contents_a);
  std::vector<Entry> a = EntriesOf(*contents_a);
  std::erase_if(a, is_shared);
  std::vector<KeyInBoth> both;
  both.reserve(std::min(a.size(), b.size()));
  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    if (j == b.size() || (i < a.size() && a[i].fqn < b[j].fqn)) {
      diff.changes.push_back(WholeChange(KeyChange::Kind::kRemoved, a[i++]));
    } else if (i == a.size() || b[j].fqn < a[i].fqn) {
      diff.changes.push_back(WholeChange(KeyChange::Kind::kAdded, b[j++]));
    } else {
      both.push_back({.a = a[i++], .b = b[j++]});
    }
  }
  CAIRN_TRY(CompareByScan(view_a, *contents_a, view_b, *contents_b, both, diff));
  std::erase_if(both, [](const KeyInBoth& key) { return key.is_compared; });
  CAIRN_TRY(CompareKeys(view_a, view_b, both, diff));
  return diff;
}

}  // namespace
}  // namespace internal

Result<Diff> CompareSteps(const kv::Store& store, uint64_t step_a, uint64_t step_b,
                          const KeyPatterns& patterns) {
  CAIRN_TRY_ASSIGN(internal::StepView a, internal::FindView(store, step_a));
  return internal::WithView(store, std::move(a), [&](const auto& view_a) -> Result<Diff> {
    internal::StepView view_b = view_a;  // in the same snapshot
    CAIRN_TRY_ASSIGN(view_b.step, view_a.snapshot->FindStep(step_b));
    return internal::CompareViews(view_a, view_b, patterns);
  });
}

Result<void> FindVersions(const kv::Store& store, const std::string& fqn,
                          const VersionVisitor& visit, std::span<const kv::StepInfo> steps) {
  using internal::Entry;
  CAIRN_TRY_ASSIGN(const auto snapshot, store.Latest());
  std::vector<kv::StepInfo> all_steps;
  if (steps.empty()) {
    CAIRN_TRY_ASSIGN(all_steps, snapshot->Steps());
    steps = all_steps;
  }
  const std::string names[] = {fqn};
  Mutex reading;
  internal::StepView view{.snapshot = snapshot, .step = {}, .directory = store.directory()};
  internal::StepView view_before = view;
  Contents before, contents;
  std::optional<Entry> last;  // in `before`
  bool is_found = false;
  for (const kv::StepInfo& step : steps) {
    view.step = step;
    CAIRN_TRY_ASSIGN(contents, internal::FindLeaves(view, {}, names));
    std::optional<Entry> entry;
    for (const Entry& found : internal::EntriesOf(contents)) {
      if (found.fqn == fqn) entry = found;
    }
    std::optional<KeyChange> change;
    if (last && entry) {
      CAIRN_TRY_ASSIGN(change, internal::CompareEntries(view_before, *last, view, *entry, reading));
    } else if (last || entry) {
      change = entry ? internal::WholeChange(KeyChange::Kind::kAdded, *entry)
                     : internal::WholeChange(KeyChange::Kind::kRemoved, *last);
    }
    is_found |= entry.has_value();
    if (change) {
      CAIRN_TRY(visit({.step = step, .before = view_before.step, .change = *std::move(change)}));
    }
    before = std::move(contents);  // the vectors to which the entry refers stay where they are
    last = entry;
    view_before.step = step;
  }
  if (is_found) return {};
  if (!steps.empty()) CAIRN_TRY(internal::FindTensor(view, fqn));  // names similar keys
  return Fail(Error{.code = ErrorCode::kNotFound,
                    .hint = Hint::kListKeys,
                    .message = "no step has this key",
                    .key = fqn});
}

}  // namespace cairn::core
