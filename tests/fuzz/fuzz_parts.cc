// Parts of ranks, and the records in them, as rank 0 reads them.

#include <memory>

#define XXH_STATIC_LINKING_ONLY  // for XXH3_64bits_withSeed
#include <xxhash.h>
#include <zstd.h>

#include "kv/base/digest.h"
#include "kv/commit/internal/part_file.h"
#include "kv/commit/internal/rank_batch.h"
#include "kv/commit/internal/record_sorter.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "schema/little_endian.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

constexpr char kAttempt[] = "0000000112345678-7-0";
constexpr char kName[] = "pending/0000000112345678-7-0/1.part";

const PartHeader kHeader{.step = 7, .rank = 1, .world_size = 2, .attempt = kAttempt};

// Objects with the format of parts (docs/format/part.md) around the entries of an input.

using schema::GetLittleEndian;
using schema::PutLittleEndian;

constexpr size_t kBlockHeaderBytes = 24;
constexpr uint32_t kEndMark = 0xffffffff;

/// Makes the checksums of all blocks from `begin` on right.
void RepairBlocks(std::span<std::byte> bytes, size_t begin) {
  for (size_t at = begin; bytes.size() >= at && bytes.size() - at >= kBlockHeaderBytes;) {
    const std::span<std::byte> block = bytes.subspan(at);
    const size_t stored_bytes = GetLittleEndian<uint32_t>(block, 8);
    if (stored_bytes > block.size() - kBlockHeaderBytes) return;
    const uint64_t seed =
        (uint64_t{GetLittleEndian<uint32_t>(block, 0)} << 32) | GetLittleEndian<uint32_t>(block, 4);
    PutLittleEndian(block, 16,
                    XXH3_64bits_withSeed(block.data() + kBlockHeaderBytes, stored_bytes, seed));
    at += kBlockHeaderBytes + stored_bytes;
  }
}

/// Makes the checksums of the header and of all blocks right.
void RepairPart(std::span<std::byte> part) {
  constexpr size_t kCovered = kPartHeaderBytes - 8;
  if (part.size() < kPartHeaderBytes) return;
  PutLittleEndian(part, kCovered, kv::Checksum64(part.first(kCovered)));
  RepairBlocks(part, kPartHeaderBytes);
}

/// Returns one block, without its checksum.
std::vector<std::byte> BlockOf(std::span<const std::byte> payload, uint32_t entry_count) {
  std::vector<std::byte> block(kBlockHeaderBytes + ZSTD_compressBound(payload.size()));
  const size_t stored_bytes =
      ZSTD_compress(block.data() + kBlockHeaderBytes, block.size() - kBlockHeaderBytes,
                    payload.data(), payload.size(), 1);
  CAIRN_FUZZ_CHECK(!ZSTD_isError(stored_bytes));
  block.resize(kBlockHeaderBytes + stored_bytes);
  PutLittleEndian(block, 0, static_cast<uint32_t>(payload.size()));
  PutLittleEndian(block, 4, entry_count);
  PutLittleEndian(block, 8, static_cast<uint32_t>(stored_bytes));
  return block;
}

/// Returns a part with one block of these entries.
std::vector<std::byte> PartOf(const PartHeader& header, std::span<const std::byte> entries,
                              uint32_t entry_count) {
  constexpr char kName[] = "pending/part";
  const auto storage = std::make_shared<MemoryStorage>("fuzz");
  CAIRN_FUZZ_CHECK(PartWriter(storage, kName, header).Finish().has_value());
  std::vector<std::byte> part = FetchPart(*storage, kName).value();
  part.resize(kPartHeaderBytes);
  const std::vector<std::byte> block = BlockOf(entries, entry_count);
  part.insert(part.end(), block.begin(), block.end());
  std::vector<std::byte> end(8);
  PutLittleEndian<uint64_t>(end, 0, entry_count);
  const std::vector<std::byte> last = BlockOf(end, kEndMark);
  part.insert(part.end(), last.begin(), last.end());
  RepairPart(part);
  return part;
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

}  // namespace cairn::fuzz
