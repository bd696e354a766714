#include "tests/fuzz/part_bytes.h"

#include <memory>

#define XXH_STATIC_LINKING_ONLY  // for XXH3_64bits_withSeed
#include <xxhash.h>
#include <zstd.h>

#include "kv/base/digest.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "schema/little_endian.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using schema::GetLittleEndian;
using schema::PutLittleEndian;

constexpr size_t kBlockHeaderBytes = 24;
constexpr uint32_t kEndMark = 0xffffffff;

}  // namespace

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

void RepairPart(std::span<std::byte> part) {
  constexpr size_t kCovered = kv::internal::kPartHeaderBytes - 8;
  if (part.size() < kv::internal::kPartHeaderBytes) return;
  PutLittleEndian(part, kCovered, kv::Checksum64(part.first(kCovered)));
  RepairBlocks(part, kv::internal::kPartHeaderBytes);
}

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

std::vector<std::byte> PartOf(const kv::internal::PartHeader& header,
                              std::span<const std::byte> entries, uint32_t entry_count) {
  constexpr char kName[] = "pending/part";
  const auto storage = std::make_shared<kv::internal::MemoryStorage>("fuzz");
  CAIRN_FUZZ_CHECK(kv::internal::PartWriter(storage, kName, header).Finish().has_value());
  std::vector<std::byte> part = kv::internal::FetchPart(*storage, kName).value();
  part.resize(kv::internal::kPartHeaderBytes);
  const std::vector<std::byte> block = BlockOf(entries, entry_count);
  part.insert(part.end(), block.begin(), block.end());
  std::vector<std::byte> end(8);
  PutLittleEndian<uint64_t>(end, 0, entry_count);
  const std::vector<std::byte> last = BlockOf(end, kEndMark);
  part.insert(part.end(), last.begin(), last.end());
  RepairPart(part);
  return part;
}

}  // namespace cairn::fuzz
