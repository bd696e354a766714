// Parts of ranks, and the records in them, as rank 0 reads them.

#include <memory>

#include "kv/commit/internal/part_file.h"
#include "kv/commit/internal/rank_batch.h"
#include "kv/commit/internal/record_sorter.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

constexpr char kAttempt[] = "00000001123456780000000000000000-7-0";
constexpr char kName[] = "pending/00000001123456780000000000000000-7-0/1.part";

const PartHeader kHeader{.step = 7, .rank = 1, .world_size = 2, .attempt = kAttempt};

/// Makes the checksums of all frames right.
void RepairFrames(std::span<std::byte> part) {
  while (!part.empty()) {
    const std::span<std::byte> frame = part.first(LengthsOfFrame(part).frame_bytes);
    if (frame.size() < sizeof(uint64_t)) return;
    RepairChecksum(frame);
    part = part.subspan(frame.size());
  }
}

/// Returns a part with one frame, whose header is right.
std::vector<std::byte> PartOf(const PartHeader& header, std::span<const std::byte> records) {
  const auto storage = std::make_shared<MemoryStorage>("fuzz");
  CAIRN_FUZZ_CHECK(PartWriter(storage, kName, header).Finish().has_value());
  std::vector<std::byte> record =
      UnframeRecord(kPartFrame, FetchPart(*storage, kName).value()).value();
  record.insert(record.end(), records.begin(), records.end());
  return FrameRecord(kPartFrame, record).value();
}

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

}  // namespace

void Fuzz(Input input) {
  const uint8_t selector = TakeSelector(input, 3);
  std::vector<std::byte> part;
  if (selector == 2) {
    part = PartOf(kHeader, input.rest());
  } else {
    part = input.CopyRest();
    if (selector == 1) RepairFrames(part);
  }
  RankBatch batch(kAttempt, 1);
  batch.BeginPart(1);
  uint64_t called_bytes = 0;
  Result<void> read;
  {
    // A frame of zeros is stored in 4 bytes per 128 KiB.
    const MemoryLimit limit((16 << 20) + part.size() * (40 << 10));
    read = ReadPart(kName, part, kHeader, [&](const TableRecord& record) {
      called_bytes += record.key.size() + record.value.size();
      return batch.Add(record);
    });
  }
  CAIRN_FUZZ_CHECK(called_bytes <= ClaimedBytes(part));
  if (!read) return UseError(read.error());
  CheckBatch(batch);
}

}  // namespace cairn::fuzz
