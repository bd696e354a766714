#pragma once
/// Finding the records of one step: its generation in a fresh snapshot, tensors, chunks, file
/// names.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/step/contents.h"
#include "core/step/internal/records.h"
#include "kv/snapshot.h"
#include "kv/step_info.h"
#include "kv/store.h"

namespace cairn::core::internal {

/// One step of one snapshot; cheap to copy.
struct StepView {
  std::shared_ptr<const kv::Snapshot> snapshot;
  kv::StepInfo step;
  std::string directory;  // of the store
};

/// The current state of the store, in which `step` must still be. kNotFound: it was deleted or
/// overwritten meanwhile.
Result<StepView> ViewStep(const kv::Store& store, const kv::StepInfo& step);

/// Runs `read` on a view of `step`, once more on a fresh one if a segment vanished under it.
template <typename Read>
auto WithStep(const kv::Store& store, const kv::StepInfo& step, const Read& read)
    -> decltype(read(std::declval<const StepView&>())) {
  CAIRN_TRY_ASSIGN(const StepView view, ViewStep(store, step));
  auto result = read(view);
  if (result || result.error().code != ErrorCode::kNotFound) return result;
  CAIRN_TRY_ASSIGN(const StepView fresh, ViewStep(store, step));
  if (fresh.snapshot == view.snapshot) return result;
  return read(fresh);
}

/// The tensor's record. kNotFound names keys that look alike.
Result<TensorInfo> FindTensor(const StepView& view, const std::string& fqn);

/// Records of all of `fqns` (ascending, no duplicates), in the same order. One scan when they are a
/// large part of the step, else one lookup each.
Result<std::vector<TensorInfo>> FindTensors(const StepView& view,
                                            std::span<const std::string> fqns);

/// Calls `visit` for each chunk of `tensor`, in key order, checked against it. kDataLoss: a record
/// is damaged, or their number is not what the tensor says.
Result<void> ForEachChunk(const StepView& view, const TensorInfo& tensor,
                          const std::function<Result<void>(ChunkInfo)>& visit);

/// The same for many tensors (ascending by FQN, no duplicates); visit(i, chunk) with the index in
/// `tensors`.
Result<void> ForEachChunkOf(const StepView& view, std::span<const TensorInfo> tensors,
                            const std::function<Result<void>(size_t, ChunkInfo)>& visit);

/// Path of a segment's file, for messages.
std::string SegmentPath(const StepView& view, uint64_t segment_id);

/// What a reader says of bytes that do not match: kDataLoss with key, step, file and offset.
/// Of the segment, `offset_bytes` from its start.
Error DamagedBytes(const StepView& view, const std::string& fqn, uint64_t segment_id,
                   std::string message, uint64_t offset_bytes);

}  // namespace cairn::core::internal
