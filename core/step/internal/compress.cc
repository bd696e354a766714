#include "core/step/internal/compress.h"

#include <algorithm>
#include <array>

#include "core/codec/internal/delta_format.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"

namespace cairn::core::internal {
namespace {

uint64_t MaxCompressedBytes(uint64_t bytes) { return bytes - bytes / 20; }

// Returns true if a page in the middle of the chunk becomes shorter by at least a 20th. Cost:
// compresses this page.
bool IsCompressible(DeltaEncoder& encoder, uint32_t element_bytes, uint64_t chunk_bytes,
                    const PageSource& pages) {
  const std::span<const std::byte> page = pages((kv::PageCount(chunk_bytes) - 1) / 2);
  encoder.Begin(DeltaElementBytes(element_bytes, chunk_bytes), page.size());
  encoder.AddCompletePage(page);
  const std::array<uint64_t, 1> no_digest{};
  return encoder.Finish(no_digest, MaxCompressedBytes(page.size())).has_value();
}

}  // namespace

std::optional<std::vector<std::byte>> Compress(DeltaEncoder& encoder, uint32_t element_bytes,
                                               uint64_t chunk_bytes, const PageSource& pages,
                                               std::span<const uint64_t> page_digests) {
  CAIRN_CHECK(chunk_bytes >= kMinCompressibleBytes && chunk_bytes <= kMaxCompressibleBytes);
  if (!IsCompressible(encoder, element_bytes, chunk_bytes, pages)) return std::nullopt;
  encoder.Begin(element_bytes, chunk_bytes);
  for (uint64_t page = 0; page < kv::PageCount(chunk_bytes); ++page) {
    encoder.AddCompletePage(pages(page));
  }
  const auto compressed = encoder.Finish(page_digests, MaxCompressedBytes(chunk_bytes));
  if (!compressed) return std::nullopt;
  return std::vector<std::byte>(compressed->begin(), compressed->end());
}

std::optional<std::vector<std::byte>> CompressBytes(std::span<const std::byte> bytes,
                                                    uint32_t element_bytes,
                                                    std::span<const uint64_t> page_digests) {
  thread_local DeltaEncoder encoder;
  const auto page_at = [&](uint64_t page) {
    const uint64_t begin = page * kv::kPageBytes;
    return bytes.subspan(begin, std::min<uint64_t>(kv::kPageBytes, bytes.size() - begin));
  };
  return Compress(encoder, element_bytes, bytes.size(), page_at, page_digests);
}

}  // namespace cairn::core::internal
