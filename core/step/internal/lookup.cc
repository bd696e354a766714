#include "core/step/internal/lookup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "core/state_dict/key_name.h"
#include "core/tensor/tiling.h"
#include "kv/base/key.h"

namespace cairn::core::internal {

Result<std::shared_ptr<const StoredTree>> TreeCache::Find(const StepView& view) {
  {
    const MutexLock lock(mutex_);
    if (tree_ != nullptr && digest_ == view.step.structure) return tree_;
  }
  CAIRN_TRY_ASSIGN(std::vector<std::byte> record, FindStructure(view));
  // A damaged record must not become the tree of other steps.
  const bool keeps = record.size() <= kMaxBytes && kv::PayloadDigest(record) == view.step.structure;
  CAIRN_TRY_ASSIGN(std::shared_ptr<const StoredTree> tree, StoredTree::Open(std::move(record)));
  if (keeps) {
    const MutexLock lock(mutex_);
    digest_ = view.step.structure;
    tree_ = tree;
  }
  return tree;
}

namespace {

// A lookup costs about as much as this many records of a scan.
constexpr uint64_t kSeekCost = 16;

// Returns the length of the common prefix and suffix of two keys.
uint64_t CommonEnds(std::string_view a, std::string_view b) {
  const auto front = std::ranges::mismatch(a, b).in1 - a.begin();
  const auto back = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin();
  return static_cast<uint64_t>(
      std::min<ptrdiff_t>(front + back, static_cast<ptrdiff_t>(std::min(a.size(), b.size()))));
}

struct KnownKeys {
  std::vector<std::string> similar;  // by prefix and suffix, best first
  std::vector<std::string> first;    // first of all keys, or of the keys that were looked at
};

// Returns keys of the step that the error for `fqn` can name. If a step has very many tensors, it
// only looks at the tensors in the same module, so that the error appears at once.
KnownKeys FindKnownKeys(const StepView& view, std::string_view fqn) {
  constexpr size_t kShown = 3;
  constexpr uint64_t kMaxScanned = 20'000;
  KnownKeys known;
  uint64_t left = kMaxScanned;
  const bool are_many = view.step.tensor_count > kMaxScanned;
  const std::string_view module = fqn.substr(0, are_many ? fqn.rfind('.') + 1 : 0);
  std::vector<std::pair<uint64_t, std::string>> best;
  const auto scanned =
      view.snapshot->Scan(kv::Column::kTensors, view.step, module,
                          [&](std::string_view key, std::span<const std::byte>) -> Result<bool> {
                            if (left-- == 0) return false;
                            const auto parsed = kv::ParseKey(key);
                            if (!parsed) return true;
                            if (known.first.size() < kShown) known.first.emplace_back(parsed->fqn);
                            const uint64_t score = CommonEnds(fqn, parsed->fqn);
                            if (score * 2 < std::max(fqn.size(), parsed->fqn.size())) return true;
                            best.emplace_back(score, parsed->fqn);
                            std::ranges::stable_sort(best, std::ranges::greater{},
                                                     &std::pair<uint64_t, std::string>::first);
                            if (best.size() > kShown) best.pop_back();
                            return true;
                          });
  if (!scanned) return {};  // only a hint: the caller returns kNotFound in any case
  for (auto& [score, name] : best) known.similar.push_back(std::move(name));
  return known;
}

Error MissingTensor(const StepView& view, std::string_view fqn) {
  const KnownKeys known = FindKnownKeys(view, fqn);
  std::string message = "the step has no such tensor";
  if (!known.similar.empty()) {
    message += fmt::format("; similar keys: {}", fmt::join(known.similar, ", "));
  } else if (!known.first.empty()) {
    message += fmt::format("; its first keys: {}", fmt::join(known.first, ", "));
  }
  return Error{.code = ErrorCode::kNotFound,
               .hint = known.similar.empty() ? Hint::kListKeys : Hint::kStated,
               .message = std::move(message),
               .key = std::string(fqn),
               .step = view.step.step};
}

std::unexpected<Error> AtStep(const StepView& view, Error error) {
  if (!error.step) error.step = view.step.step;
  return Fail(std::move(error));
}

}  // namespace

Result<StepView> ViewStep(const kv::Store& store, const kv::StepInfo& step) {
  auto snapshot = store.SnapshotWith(step);
  if (snapshot) {
    return StepView{.snapshot = *std::move(snapshot), .step = step, .directory = store.directory()};
  }
  if (snapshot.error().code != ErrorCode::kNotFound) return std::unexpected(snapshot.error());
  return Fail(Error{.code = ErrorCode::kNotFound,
                    .message = fmt::format("step {} was deleted or overwritten while it was being "
                                           "read; list the steps and read again",
                                           step.step),
                    .step = step.step});
}

Result<StepView> FindView(const kv::Store& store, std::optional<uint64_t> step) {
  CAIRN_TRY_ASSIGN(auto snapshot, store.Latest());
  CAIRN_TRY_ASSIGN(kv::StepInfo info, snapshot->FindStep(step));
  return StepView{
      .snapshot = std::move(snapshot), .step = std::move(info), .directory = store.directory()};
}

Result<TensorInfo> FindTensor(const StepView& view, const std::string& fqn) {
  if (fqn.find('\0') != std::string::npos) return Fail(MissingTensor(view, fqn));
  CAIRN_TRY_ASSIGN(const auto record,
                   view.snapshot->Get(kv::Column::kTensors, view.step, kv::FqnKey(fqn)));
  if (!record) return Fail(MissingTensor(view, fqn));
  auto info = DecodeTensor(fqn, *record);
  if (!info) return AtStep(view, std::move(info).error());
  return info;
}

Result<std::vector<TensorInfo>> FindTensors(const StepView& view,
                                            std::span<const std::string_view> fqns) {
  std::vector<TensorInfo> found;
  found.reserve(fqns.size());
  CAIRN_TRY(ForEachTensor(view, fqns, [&](size_t, TensorInfo&& tensor) -> Result<void> {
    found.push_back(std::move(tensor));
    return {};
  }));
  return found;
}

Result<void> ForEachTensor(const StepView& view, std::span<const std::string_view> fqns,
                           const std::function<Result<void>(size_t, TensorInfo&&)>& visit) {
  if (fqns.size() * kSeekCost < view.step.tensor_count) {
    for (size_t i = 0; i < fqns.size(); ++i) {
      CAIRN_TRY_ASSIGN(TensorInfo info, FindTensor(view, std::string(fqns[i])));
      CAIRN_TRY(visit(i, std::move(info)));
    }
    return {};
  }
  size_t next = 0;
  TensorInfo info;  // reused, if `visit` leaves its memory
  CAIRN_TRY(view.snapshot->Scan(
      kv::Column::kTensors, view.step, "",
      [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
        if (next == fqns.size()) return false;
        const std::string_view fqn = key.substr(0, key.find('\0'));
        if (key.size() != fqn.size() + 1) CAIRN_TRY(kv::ParseKey(key));  // returns the error
        const int order = fqn.compare(fqns[next]);
        if (order < 0) return true;
        if (order > 0) return Fail(MissingTensor(view, fqns[next]));
        Result<void> read = DecodeTensor(fqn, record, info);
        if (!read) return AtStep(view, std::move(read).error());
        CAIRN_TRY(visit(next++, std::move(info)));
        return true;
      }));
  if (next < fqns.size()) return Fail(MissingTensor(view, fqns[next]));
  return {};
}

Result<void> CheckAlias(const TensorInfo& alias, const TensorInfo& owner) {
  if (alias.nbytes == 0) return {};
  const auto bytes = SpanBytes(schema::ElementBytes(alias.dtype), alias.shape, alias.alias_strides);
  uint64_t end = 0;
  if (!owner.alias_of && bytes && !__builtin_add_overflow(*bytes, alias.alias_offset_bytes, &end) &&
      end <= owner.nbytes) {
    return {};
  }
  return Fail(Error{
      .code = ErrorCode::kDataLoss,
      .message = fmt::format("TensorRecord is damaged: it refers to bytes beyond the {} bytes "
                             "of '{}', which it shares",
                             owner.nbytes, owner.fqn),
      .key = alias.fqn});
}

bool IsWholeOwner(const TensorInfo& alias, const TensorInfo& owner) {
  if (alias.dtype != owner.dtype || alias.shape != owner.shape || alias.alias_offset_bytes != 0) {
    return false;
  }
  uint64_t stride = 1;
  for (size_t i = alias.shape.size(); i-- > 0;) {
    if (alias.shape[i] != 1 && alias.alias_strides[i] != stride) return false;
    stride *= alias.shape[i];
  }
  return true;
}

void SortUnique(std::vector<std::string_view>& names) {
  // They often are in order, and this is much cheaper than sorting them again.
  if (std::ranges::adjacent_find(names, std::ranges::greater_equal()) == names.end()) return;
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
}

Result<std::vector<TensorInfo>> FindNamed(const StepView& view,
                                          std::vector<std::string_view> fqns) {
  SortUnique(fqns);
  return FindTensors(view, fqns);
}

const TensorInfo* FindByName(std::span<const TensorInfo> tensors, std::string_view fqn) {
  const auto found = std::ranges::lower_bound(tensors, fqn, {}, &TensorInfo::fqn);
  return found != tensors.end() && found->fqn == fqn ? &*found : nullptr;
}

const TensorInfo& ByName(std::span<const TensorInfo> tensors, std::string_view fqn) {
  const TensorInfo* const found = FindByName(tensors, fqn);
  CAIRN_CHECK(found != nullptr);
  return *found;
}

Result<std::vector<TensorInfo>> FindOwners(const StepView& view,
                                           std::span<const TensorInfo> tensors) {
  std::vector<TensorInfo> owners;
  for (const TensorInfo& tensor : tensors) {
    if (!tensor.alias_of) owners.push_back(tensor);
  }
  std::vector<std::string_view> others;
  for (const TensorInfo& tensor : tensors) {
    if (!tensor.alias_of) continue;
    if (FindByName(owners, *tensor.alias_of) == nullptr) others.push_back(*tensor.alias_of);
  }
  if (others.empty()) return owners;
  auto found = FindNamed(view, std::move(others));
  if (!found) {
    Error error = std::move(found).error();
    if (error.code == ErrorCode::kNotFound) {
      error.code = ErrorCode::kDataLoss;
      error.hint = Hint::kNone;
      error.message = "the step lacks this tensor, whose bytes others share";
    }
    return Fail(std::move(error));
  }
  std::ranges::move(*found, std::back_inserter(owners));
  std::ranges::sort(owners, {}, &TensorInfo::fqn);
  return owners;
}

Result<TensorInfo> FindOwner(const StepView& view, const TensorInfo& alias) {
  CAIRN_CHECK(alias.alias_of.has_value());
  CAIRN_TRY_ASSIGN(std::vector<TensorInfo> owners, FindOwners(view, {&alias, 1}));
  CAIRN_TRY(CheckAlias(alias, owners.front()));
  return std::move(owners.front());
}

Result<void> CheckBytes(const StepView& view, const ValueInfo& value, const TensorInfo* tensor) {
  if (tensor != nullptr && HasBytesOf(*tensor, value)) return {};
  return Fail(
      Error{.code = ErrorCode::kDataLoss,
            .message = "the step lacks the bytes of this value, or has another length of them",
            .key = value.fqn,
            .step = view.step.step});
}

Result<std::set<std::string, std::less<>>> FindLongValues(const kv::Snapshot& snapshot,
                                                          const kv::StepInfo& step) {
  std::set<std::string, std::less<>> fqns;
  uint64_t left = step.value_count;  // the structure, which can be large, is the record after them
  if (left == 0) return fqns;
  CAIRN_TRY(snapshot.Scan(kv::Column::kValues, step, "",
                          [&](std::string_view key, std::span<const std::byte> record) {
                            const auto value = DecodeValue(record);
                            if (value && std::holds_alternative<ChunkedValue>(*value)) {
                              fqns.emplace(key.substr(0, key.find('\0')));
                            }
                            return Result<bool>(--left > 0);
                          }));
  return fqns;
}

Result<std::vector<std::byte>> FindStructure(const StepView& view) {
  CAIRN_TRY_ASSIGN(auto record, view.snapshot->GetStructure(view.step));
  if (record) return *std::move(record);
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = "the step has no structure record",
                    .step = view.step.step});
}

Result<std::set<std::string>> FindEscapedTexts(const StepView& view) {
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> record, FindStructure(view));
  CAIRN_TRY_ASSIGN(const StateTree tree, DecodeTree(record));
  std::set<std::string> texts;
  if (!HasForms(tree)) return texts;
  CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, FlattenTree(tree));
  for (const Leaf& leaf : leaves) {
    if (leaf.fqn.contains('\\')) texts.insert(JoinedTexts(leaf.fqn));
  }
  return texts;
}

Result<void> ForEachChunk(const StepView& view, const TensorInfo& tensor,
                          const std::function<Result<void>(ChunkInfo&&)>& visit) {
  return ForEachChunkOf(view, std::span(&tensor, 1),
                        [&](size_t, ChunkInfo&& chunk) { return visit(std::move(chunk)); });
}

Result<void> ForEachChunkOf(const StepView& view, std::span<const TensorEntry> tensors,
                            const std::function<Result<void>(size_t, ChunkInfo&&)>& visit) {
  size_t at = 0;            // the tensor whose chunks are next
  uint64_t seen = 0;        // number of its chunks so far
  TilingSum boxes;          // theirs
  bool is_whole = false;    // there is one, which has the tensor's shape
  uint64_t skipped = 0;     // chunks of other tensors, since the last chunk of one of these
  bool is_stopped = false;  // the scan, before the end of the column
  ChunkInfo chunk;          // reused, if `visit` leaves its memory
  const auto finish = [&]() -> Result<void> {
    const TensorEntry& tensor = tensors[at];
    const auto damaged = [&](std::string message) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = std::move(message),
                        .key = std::string(tensor.fqn),
                        .step = view.step.step});
    };
    if (seen != tensor.chunk_count) {
      return damaged(
          fmt::format("the step has {} of the tensor's {} chunks", seen, tensor.chunk_count));
    }
    // Chunks that overlap could hide that others are missing.
    if (tensor.alias == nullptr && !is_whole && !boxes.IsTiling(tensor.shape)) {
      return damaged("the step's chunks do not cover the tensor exactly once");
    }
    ++at;
    seen = 0;
    boxes = {};
    is_whole = false;
    return {};
  };
  const auto on_record = [&](std::string_view key,
                             std::span<const std::byte> record) -> Result<bool> {
    const std::string_view fqn = key.substr(0, key.find('\0'));
    int order = 1;
    while (at < tensors.size() && (order = fqn.compare(tensors[at].fqn)) > 0) CAIRN_TRY(finish());
    is_stopped = at == tensors.size() || (order != 0 && ++skipped > kSeekCost);
    if (is_stopped) return false;
    if (order != 0) return true;
    skipped = 0;
    Result<void> read = DecodeChunk(key, record, chunk);
    const TensorEntry& tensor = tensors[at];
    if (read) read = CheckChunk(tensor, chunk);
    if (!read) return AtStep(view, std::move(read).error());
    ++seen;
    is_whole = tensor.chunk_count == 1 && std::ranges::equal(chunk.box.sizes, tensor.shape);
    if (!is_whole) boxes.Add(chunk.box.offsets, chunk.box.sizes);
    CAIRN_TRY(visit(at, std::move(chunk)));
    return true;
  };
  // The scan leaps over the chunks of other tensors where that is cheaper. If it probably reads
  // most of the column, it begins with it, so that it reads far ahead.
  const bool are_many = tensors.size() * kSeekCost >= view.step.chunk_count;
  for (bool is_first = true; at < tensors.size(); is_first = false) {
    const std::string first_key = is_first && are_many ? "" : kv::FqnKey(tensors[at].fqn);
    skipped = 0;
    is_stopped = false;
    CAIRN_TRY(view.snapshot->ScanFrom(kv::Column::kChunks, view.step, first_key, on_record));
    while (!is_stopped && at < tensors.size()) CAIRN_TRY(finish());
  }
  return {};
}

Result<void> ForEachChunkOf(const StepView& view, std::span<const TensorInfo> tensors,
                            const std::function<Result<void>(size_t, ChunkInfo&&)>& visit) {
  std::vector<TensorEntry> entries;
  entries.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) entries.push_back(EntryOf(tensor));
  return ForEachChunkOf(view, entries, visit);
}

std::string SegmentPath(const StepView& view, uint64_t segment_id) {
  const auto segment = view.snapshot->FindSegment(segment_id);
  if (!segment) return fmt::format("{}/segments/ (segment {})", view.directory, segment_id);
  return fmt::format("{}/segments/{}", view.directory, segment->name);
}

Error DamagedBytes(const StepView& view, const std::string& fqn, uint64_t segment_id,
                   std::string message, uint64_t offset_bytes) {
  return Error{.code = ErrorCode::kDataLoss,
               .message = std::move(message),
               .key = fqn,
               .file = SegmentPath(view, segment_id),
               .step = view.step.step,
               .offset_bytes = offset_bytes};
}

}  // namespace cairn::core::internal
