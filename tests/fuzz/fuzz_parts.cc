// Parts of ranks, and the records in them, as rank 0 reads them.

#include <memory>

#define XXH_STATIC_LINKING_ONLY  // for XXH3_64bits_withSeed
#include <xxhash.h>
#include <zstd.h>

#include "kv/digest.h"
#include "kv/internal/parts/collected_records.h"
#include "kv/internal/parts/part_file.h"
#include "kv/internal/parts/rank_batch.h"
#include "kv/internal/storage/memory_storage.h"
#include "schema/little_endian.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test
using schema::GetLittleEndian;
using schema::PutLittleEndian;

constexpr char kAttempt[] = "0000000112345678-7-0";
constexpr char kName[] = "pending/0000000112345678-7-0/1.part";
constexpr size_t kBlockHeaderBytes = 24;
constexpr uint32_t kEndMark = 0xffffffff;

const PartHeader kHeader{.step = 7, .rank = 1, .world_size = 2, .attempt = kAttempt};

/// Makes the checksums of the header and of all blocks right.
void RepairChecksums(std::span<std::byte> part) {
  if (part.size() < kPartHeaderBytes) return;
  PutLittleEndian(part, kPartHeaderBytes - 8, kv::Checksum64(part.first(kPartHeaderBytes - 8)));
  for (size_t at = kPartHeaderBytes; part.size() - at >= kBlockHeaderBytes;) {
    const std::span<std::byte> block = part.subspan(at);
    const size_t stored_bytes = GetLittleEndian<uint32_t>(block, 8);
    if (stored_bytes > block.size() - kBlockHeaderBytes) return;
    const uint64_t seed =
        (uint64_t{GetLittleEndian<uint32_t>(block, 0)} << 32) | GetLittleEndian<uint32_t>(block, 4);
    PutLittleEndian(block, 16,
                    XXH3_64bits_withSeed(block.data() + kBlockHeaderBytes, stored_bytes, seed));
    at += kBlockHeaderBytes + stored_bytes;
  }
}

void AppendBlock(std::vector<std::byte>& part, std::span<const std::byte> payload,
                 uint32_t entry_count) {
  std::vector<std::byte> block(kBlockHeaderBytes + ZSTD_compressBound(payload.size()));
  const size_t stored_bytes =
      ZSTD_compress(block.data() + kBlockHeaderBytes, block.size() - kBlockHeaderBytes,
                    payload.data(), payload.size(), 1);
  CAIRN_FUZZ_CHECK(!ZSTD_isError(stored_bytes));
  block.resize(kBlockHeaderBytes + stored_bytes);
  PutLittleEndian(block, 0, static_cast<uint32_t>(payload.size()));
  PutLittleEndian(block, 4, entry_count);
  PutLittleEndian(block, 8, static_cast<uint32_t>(stored_bytes));
  part.insert(part.end(), block.begin(), block.end());
}

/// Returns a part with one block of these entries.
std::vector<std::byte> PartOf(std::span<const std::byte> entries, uint32_t entry_count) {
  const auto storage = std::make_shared<MemoryStorage>("fuzz");
  CAIRN_FUZZ_CHECK(PartWriter(storage, kName, kHeader).Finish().has_value());
  std::vector<std::byte> part = FetchPart(*storage, kName).value();
  part.resize(kPartHeaderBytes);
  AppendBlock(part, entries, entry_count);
  std::vector<std::byte> end(8);
  PutLittleEndian<uint64_t>(end, 0, entry_count);
  AppendBlock(part, end, kEndMark);
  RepairChecksums(part);
  return part;
}

/// Adds the chunks of the batch to the records of a step, and visits them.
void CheckBatch(RankBatch& batch) {
  batch.Finish();
  const size_t block_bytes = batch.size_bytes();
  std::vector<CollectedRecords::Chunks> all;
  size_t chunk_count = 0;
  for (const RankBatch::Chunks& chunks : batch.chunks()) {
    if (chunks.records.empty()) continue;
    const kv::RankChunks view = chunks.View();
    CAIRN_FUZZ_CHECK(view.boxes.size() == 2 * view.dimensions() * view.ranks.size());
    chunk_count += view.ranks.size();
    all.push_back(chunks.in_block);
  }
  CollectedRecords records;
  records.AddChunks(batch.TakeBlock(), block_bytes, all);
  size_t visited = 0;
  std::string last;
  const Result<void> visit = records.ForEachInOrder([&](const RecordView& record) -> Result<void> {
    CAIRN_FUZZ_CHECK(record.key >= last);
    last = record.key;
    ++visited;
    return {};
  });
  CAIRN_FUZZ_CHECK(visit.has_value() && visited == chunk_count);
}

void Fuzz(Input input) {
  const uint8_t selector = TakeSelector(input, 3);
  std::vector<std::byte> part;
  if (selector == 2) {
    const auto entry_count = input.Number<uint16_t>();
    part = PartOf(input.rest(), entry_count);
  } else {
    part = input.CopyRest();
    if (selector == 1) RepairChecksums(part);
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
