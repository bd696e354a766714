#pragma once
/// Reads chunks of indexed parts: those of a range of keys, from the sections that have any.

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "kv/error.h"
#include "kv/internal/commit/live_bytes.h"
#include "kv/internal/commit/step_records_buffer.h"
#include "kv/internal/parts/rank_batch.h"
#include "kv/internal/parts/section_index.h"
#include "kv/step_records.h"
#include "kv/storage.h"

namespace cairn::kv::internal {

/// What is read. Keys are without their column; `begin` and `end` are names, as in SectionIndex.
struct SectionRange {
  std::string attempt;
  uint32_t epoch = 0;
  std::string_view begin;
  std::string_view end;
  std::span<const SectionRead> reads;
};

/// Calls `add` with the verified chunks of the range, in batches, on this thread, in the order of
/// the reads. Decodes on all cores, at most 8. Memory: per thread, about 4 MiB. kDataLoss,
/// kUnimplemented: a section is damaged, or a chunk record is newer than this build reads; names
/// the object. Returns the errors of `add`.
Result<void> GatherSections(Storage& storage, const SectionRange& range,
                            const std::function<Result<void>(RankBatch&)>& add);

/// Adds the chunks of a batch to `others` and to `records`, and the bytes that they use to `uses`.
/// Takes the records out of the batch.
Result<void> AddChunks(RankBatch& batch, RankRecords& others, StepRecordsBuffer& records,
                       LiveBytes& uses);
uint64_t ChunkCountOf(const RankBatch& batch);

}  // namespace cairn::kv::internal
