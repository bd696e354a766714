// Parts of ranks, and the records in them, as rank 0 reads them.

#include <memory>

#include "kv/commit/internal/part_file.h"
#include "kv/commit/internal/rank_batch.h"
#include "kv/commit/internal/record_sorter.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "tests/fuzz/fuzz_support.h"
#include "tests/fuzz/part_bytes.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

constexpr char kAttempt[] = "0000000112345678-7-0";
constexpr char kName[] = "pending/0000000112345678-7-0/1.part";

const PartHeader kHeader{.step = 7, .rank = 1, .world_size = 2, .attempt = kAttempt};

/// Adds the chunks of the batch to the records of a step, and visits them.
void CheckBatch(RankBatch& batch) {
  CAIRN_FUZZ_CHECK(batch.Finish().has_value());
  size_t chunk_count = 0;
  Result<void> visit = batch.ForEachChunk([&](const kv::RankChunk& chunk) -> Result<void> {
    CAIRN_FUZZ_CHECK(chunk.rank == 1 && chunk.offsets.size() == chunk.sizes.size());
    ++chunk_count;
    return {};
  });
  CAIRN_FUZZ_CHECK(visit.has_value());
  RecordSorter records(std::make_shared<MemoryStorage>("fuzz"), 1);
  CAIRN_FUZZ_CHECK(records.AddRun(batch.TakeRun()).has_value());
  size_t visited = 0;
  std::string last;
  visit = records.ForEachInOrder([&](const TableRecord& record) -> Result<void> {
    CAIRN_FUZZ_CHECK(record.key >= last);
    last = record.key;
    if (record.column() == kv::Column::kChunks) ++visited;
    return {};
  });
  CAIRN_FUZZ_CHECK(visit.has_value() && visited == chunk_count);
}

void Fuzz(Input input) {
  const uint8_t selector = TakeSelector(input, 3);
  std::vector<std::byte> part;
  if (selector == 2) {
    const auto entry_count = input.Number<uint16_t>();
    part = PartOf(kHeader, input.rest(), entry_count);
  } else {
    part = input.CopyRest();
    if (selector == 1) RepairPart(part);
  }
  MemoryStorage storage("fuzz");
  RankBatch batch(kAttempt, 1);
  batch.BeginPart(1);
  uint64_t called_bytes = 0;
  Result<void> read;
  {
    // A block of zeros is stored in 4 bytes per 128 KiB.
    const MemoryLimit limit((16 << 20) + part.size() * (40 << 10));
    read = ReadFetchedPart(storage, kName, part, kHeader, [&](const RecordView& record) {
      called_bytes += record.key.size() + record.value.size();
      return batch.Add(record);
    });
  }
  if (!HasDataObjects(part)) CAIRN_FUZZ_CHECK(called_bytes <= ClaimedBytes(part));
  if (!read) return UseError(read.error());
  CheckBatch(batch);
}

}  // namespace
}  // namespace cairn::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cairn::fuzz::Fuzz({data, size});
  return 0;
}
