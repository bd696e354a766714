#pragma once
/// Finds the records of one step: the step in a fresh snapshot, its tensors and their owners,
/// its chunks, and the names of its files.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/state_dict/internal/stored_tree.h"
#include "core/step/contents.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/digest.h"
#include "kv/base/mutex.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"

namespace cairn::core::internal {

/// One step of one snapshot; cheap to copy.
struct StepView {
  std::shared_ptr<const kv::Snapshot> snapshot;  // shared by the readers of the step
  kv::StepInfo step;
  std::string directory;  // the store's directory
};

/// Returns a view of `step` in the current state of the store. kNotFound: the step was deleted or
/// overwritten in the meantime.
Result<StepView> ViewStep(const kv::Store& store, const kv::StepInfo& step);

/// Returns a view of `step`, or of the latest step, in the newest root. kNotFound: there is no such
/// step.
Result<StepView> FindView(const kv::Store& store, std::optional<uint64_t> step);

/// Calls `read` with the view. If it returns kNotFound, because a compaction has replaced what it
/// reads, calls it again with a view of the newest root. Requires that `read` may be repeated.
template <typename Read>
auto WithView(const kv::Store& store, StepView view, const Read& read)
    -> decltype(read(std::declval<const StepView&>())) {
  constexpr int kMaxViews = 8;
  for (int i = 1;; ++i) {
    auto result = read(view);
    if (result || result.error().code != ErrorCode::kNotFound || i == kMaxViews) return result;
    CAIRN_TRY(store.Latest());  // looks for a newer root, which ViewStep need not do
    CAIRN_TRY_ASSIGN(StepView fresh, ViewStep(store, view.step));
    if (fresh.snapshot == view.snapshot) return result;
    view = std::move(fresh);
  }
}

/// Calls `read` with a view of `step`, as WithView does.
template <typename Read>
auto WithStep(const kv::Store& store, const kv::StepInfo& step, const Read& read)
    -> decltype(read(std::declval<const StepView&>())) {
  CAIRN_TRY_ASSIGN(StepView view, ViewStep(store, step));
  return WithView(store, std::move(view), read);
}

/// Returns the record of a tensor. kNotFound: there is none; the error suggests similar keys.
/// kDataLoss: the record is damaged.
Result<TensorInfo> FindTensor(const StepView& view, const std::string& fqn);

/// Returns the records of `fqns`, in the same order. Requires that `fqns` ascend without
/// duplicates. Cost: one scan if they are a large part of the step, otherwise one lookup per FQN.
/// Errors: see FindTensor.
Result<std::vector<TensorInfo>> FindTensors(const StepView& view,
                                            std::span<const std::string_view> fqns);
/// Calls `visit(i, tensor)` with these records instead. `visit` may take the tensor; memory that it
/// leaves is used for the next one.
Result<void> ForEachTensor(const StepView& view, std::span<const std::string_view> fqns,
                           const std::function<Result<void>(size_t, TensorInfo&&)>& visit);

/// Returns the StructureRecord of the step, which the caller verifies; aligned for FlatBuffers.
/// kDataLoss: there is none.
Result<std::vector<std::byte>> FindStructure(const StepView& view);

/// Returns the texts of the keys, joined by ".", of all leaves with escapes. Other leaves of the
/// step have or had the same texts, so an FQN with these texts may be another leaf elsewhere.
Result<std::set<std::string>> FindEscapedTexts(const StepView& view);

// Owners: the tensors that hold the bytes of others. A tensor that is not an alias owns its bytes
// itself.

/// Returns the owner of `alias`. Requires alias.alias_of. kDataLoss: there is no such tensor, or
/// CheckAlias fails.
Result<TensorInfo> FindOwner(const StepView& view, const TensorInfo& alias);

/// Checks that `owner` holds all bytes that `alias` may refer to. kDataLoss: the alias refers to
/// bytes outside the owner's payload, or the owner is an alias itself.
Result<void> CheckAlias(const TensorInfo& alias, const TensorInfo& owner);

/// Returns whether the alias has all elements of its owner, in the same order.
bool IsWholeOwner(const TensorInfo& alias, const TensorInfo& owner);

/// Sorts names and removes duplicates.
void SortUnique(std::vector<std::string_view>& names);

/// Returns the records of `fqns`, which may repeat and may be in any order, in key order without
/// duplicates. Errors: see FindTensors.
Result<std::vector<TensorInfo>> FindNamed(const StepView& view, std::vector<std::string_view> fqns);

/// Returns the owners of `tensors` in key order without duplicates; the caller calls CheckAlias.
/// Requires that `tensors` are in key order. kDataLoss: an owner is missing.
Result<std::vector<TensorInfo>> FindOwners(const StepView& view,
                                           std::span<const TensorInfo> tensors);

/// Returns one of `tensors` by its FQN, or null. Requires that `tensors` are in key order.
const TensorInfo* FindByName(std::span<const TensorInfo> tensors, std::string_view fqn);

/// Returns one of `tensors` by its FQN. Requires that it is one of them, and that they are in key
/// order.
const TensorInfo& ByName(std::span<const TensorInfo> tensors, std::string_view fqn);

/// kDataLoss: `tensor`, which may be null, does not have the bytes of `value`, a ChunkedValue.
Result<void> CheckBytes(const StepView& view, const ValueInfo& value, const TensorInfo* tensor);

/// Returns the FQNs of the values of a step whose bytes are chunks. Leaves out damaged records.
Result<std::set<std::string, std::less<>>> FindLongValues(const kv::Snapshot& snapshot,
                                                          const kv::StepInfo& step);

/// Calls `visit` with each chunk of `tensor`, in key order, after checking it against the tensor.
/// kDataLoss: a record is damaged, or the number of chunks differs from the tensor's record. An
/// error of `visit` ends the scan and is returned.
Result<void> ForEachChunk(const StepView& view, const TensorInfo& tensor,
                          const std::function<Result<void>(ChunkInfo&&)>& visit);

/// Calls `visit(i, chunk)` with each chunk of each of `tensors`, in key order; `i` is the index of
/// the chunk's tensor. `visit` may take the chunk; memory that it leaves is used for the next one.
/// Requires that `tensors` ascend by FQN without duplicates. Errors: see ForEachChunk.
Result<void> ForEachChunkOf(const StepView& view, std::span<const TensorEntry> tensors,
                            const std::function<Result<void>(size_t, ChunkInfo&&)>& visit);
Result<void> ForEachChunkOf(const StepView& view, std::span<const TensorInfo> tensors,
                            const std::function<Result<void>(size_t, ChunkInfo&&)>& visit);

/// Path of a segment's file, for messages.
std::string SegmentPath(const StepView& view, uint64_t segment_id);

/// Returns the kDataLoss error for bytes that do not match their digest: names the key, the step,
/// the segment's file and `offset_bytes` in it.
Error DamagedBytes(const StepView& view, const std::string& fqn, uint64_t segment_id,
                   std::string message, uint64_t offset_bytes);

/// Keeps the last tree whose StructureRecord has at most kMaxBytes. Steps with equal trees, as in
/// one training job, share it. Threads: all members are safe.
class TreeCache {
 public:
  /// Limit of a StructureRecord: about 2.5 million tensors.
  static constexpr uint64_t kMaxBytes = 64 << 20;

  /// Returns the tree of the step. kDataLoss: its StructureRecord is missing or damaged.
  /// kUnimplemented: a newer version wrote it. Cost: reads the StructureRecord, unless it is kept.
  Result<std::shared_ptr<const StoredTree>> Find(const StepView& view);

 private:
  Mutex mutex_;
  kv::Digest digest_ CAIRN_GUARDED_BY(mutex_);                       // tree_'s record
  std::shared_ptr<const StoredTree> tree_ CAIRN_GUARDED_BY(mutex_);  // shared with its readers
};

}  // namespace cairn::core::internal
