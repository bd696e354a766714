// Background threads each read and decode one batch; the calling thread adds them in order.

#include "kv/internal/section_gatherer.h"

#include <algorithm>
#include <deque>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "kv/internal/parts/attempt_outcome.h"
#include "kv/internal/parts/part_file.h"
#include "kv/internal/storage/concurrent_requests.h"
#include "kv/internal/storage/name_check.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kBatchBytes = 512 << 10;  // about, of stored bytes; but at least one read
constexpr size_t kMaxBatch = 256;            // reads
constexpr uint32_t kMaxThreads = 8;

Result<void> DecodeRead(Storage& storage, const SectionRange& range, const SectionRead& read,
                        const std::string& name, std::span<const std::byte> bytes,
                        RankBatch& batch) {
  batch.BeginPart(read.rank);
  return ReadSections(ObjectPath(storage.address(), name), bytes, read.chunk_count,
                      [&](const RecordView& record) -> Result<void> {
                        if (record.column != Column::kChunks) {
                          return Fail(ErrorCode::kDataLoss,
                                      "a section of a part has records that are not of chunks");
                        }
                        // Sections at the ends of the range have chunks of its neighbours.
                        if (record.key < range.begin) return {};
                        if (!range.end.empty() && record.key >= range.end) return {};
                        return batch.Add(record);
                      });
}

Result<std::unique_ptr<RankBatch>> LoadBatch(Storage& storage, const SectionRange& range,
                                             std::span<const SectionRead> reads,
                                             std::unique_ptr<RankBatch> batch) {
  std::vector<std::string> names(reads.size());
  std::vector<std::vector<std::byte>> bytes(reads.size());
  CAIRN_TRY(ForEachRequest(storage, reads.size(), [&](size_t i) {
    names[i] = PartDataName(PartName(range.attempt, reads[i].rank), reads[i].data_object);
    bytes[i].resize(reads[i].stored_bytes);
    return storage.ReadRange(names[i], reads[i].offset_bytes, bytes[i]);
  }));
  for (size_t i = 0; i < reads.size(); ++i) {
    CAIRN_TRY(DecodeRead(storage, range, reads[i], names[i], bytes[i], *batch));
  }
  batch->Finish();
  return batch;
}

}  // namespace

Result<void> AddChunks(RankBatch& batch, RankRecords& others, StepRecordsBuffer& records,
                       LiveBytes& uses) {
  std::vector<CollectedRecords::Chunks> in_block;
  for (const RankBatch::Chunks& chunks : batch.chunks()) {
    if (chunks.ranks.empty()) continue;
    in_block.push_back(chunks.in_block);
    CAIRN_TRY(others.AddChunks(chunks.View()));
  }
  CAIRN_TRY(records.AddChunks(batch.TakeBlock(), batch.size_bytes(), in_block));
  for (const auto& [segment_id, bytes] : batch.uses()) uses.Add(segment_id, bytes);
  return {};
}

uint64_t ChunkCountOf(const RankBatch& batch) {
  uint64_t count = 0;
  for (const RankBatch::Chunks& chunks : batch.chunks()) count += chunks.ranks.size();
  return count;
}

Result<void> GatherSections(Storage& storage, const SectionRange& range,
                            const std::function<Result<void>(RankBatch&)>& add) {
  const size_t threads = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
  std::vector<std::unique_ptr<RankBatch>> unused;
  // The last one: its destructor waits for the threads.
  std::deque<std::future<Result<std::unique_ptr<RankBatch>>>> loading;
  size_t next = 0;
  while (next < range.reads.size() || !loading.empty()) {
    while (next < range.reads.size() && loading.size() < threads) {
      size_t count = 0;
      for (uint64_t bytes = 0; next + count < range.reads.size() && count < kMaxBatch; ++count) {
        bytes += range.reads[next + count].stored_bytes;
        if (count > 0 && bytes > kBatchBytes) break;
      }
      if (unused.empty()) unused.push_back(std::make_unique<RankBatch>(range.attempt, range.epoch));
      // Deferred if the system has no more threads.
      loading.push_back(std::async(std::launch::async | std::launch::deferred,
                                   [&storage, &range, reads = range.reads.subspan(next, count),
                                    batch = std::move(unused.back())]() mutable {
                                     return LoadBatch(storage, range, reads, std::move(batch));
                                   }));
      unused.pop_back();
      next += count;
    }
    Result<std::unique_ptr<RankBatch>> batch = loading.front().get();
    loading.pop_front();
    if (!batch) return Fail(std::move(batch).error());
    CAIRN_TRY(add(**batch));
    (*batch)->Clear();
    unused.push_back(*std::move(batch));
  }
  return {};
}

}  // namespace cairn::kv::internal
