// Opens segments, and explains why one is missing.

#include "kv/internal/snapshot_state.h"

#include <fmt/format.h>

#include <utility>

namespace cairn::kv::internal {

SnapshotState::SnapshotState(const StoreState& store, std::shared_ptr<Index> index,
                             const std::vector<StepEntry>& steps)
    : paths(store.paths),
      options(store.options),
      writable(store.writable),
      uuid(store.uuid),
      index(std::move(index)),
      pool(store.pool),
      files(store.files),
      live(store.live),
      entries(steps) {
  for (const StepEntry& entry : steps) this->steps.push_back(entry.info);
}

Result<void> SnapshotState::CheckNotDeleted(uint64_t generation) const {
  if (live == nullptr || live->Contains(generation)) return {};
  return Fail(ErrorCode::kNotFound, "the step was deleted while it was being read");
}

Error SnapshotState::MissingSegment(uint64_t segment_id, const Error& cause) const {
  bool known_now = true;
  if (live != nullptr) {
    const auto record = index->Get(Column::kSegments, NumberKey(segment_id));
    known_now = !record || record->has_value();
  } else if (const auto fresh = Index::Open(paths.root, false, false, options.deadline)) {
    const auto record = (*fresh)->Get(Column::kSegments, NumberKey(segment_id));
    known_now = !record || record->has_value();
  }
  Error error = cause;
  error.code = known_now ? ErrorCode::kDataLoss : ErrorCode::kNotFound;
  error.message = known_now ? "a segment is missing: " + cause.message
                            : "the segment was removed with a step that was deleted";
  return error;
}

Result<std::shared_ptr<const SegmentFile>> SnapshotState::OpenSegment(uint64_t segment_id) const {
  const auto record = index->Get(Column::kSegments, NumberKey(segment_id));
  if (!record) return std::unexpected(record.error());
  if (!*record) {
    return Fail(MissingSegment(
        segment_id, Error{.code = ErrorCode::kDataLoss,
                          .message = fmt::format("the index has no segment {:016x}", segment_id),
                          .file = paths.segments()}));
  }
  CAIRN_TRY_ASSIGN(const SegmentInfo info, DecodeSegment(**record));
  auto file = files->Open(segment_id, paths.segments() + "/" + info.name, options.io->direct);
  if (!file && file.error().code == ErrorCode::kNotFound) {
    return Fail(MissingSegment(segment_id, file.error()));
  }
  return file;
}

}  // namespace cairn::kv::internal
