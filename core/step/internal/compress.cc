#include "core/step/internal/compress.h"

#include <algorithm>

#include "core/codec/internal/delta_format.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"

namespace cairn::core::internal {
namespace {

// In one page of elements of 4 bytes, zstd finds few of the matches that it finds in a chunk.
constexpr uint64_t kSamplePages = 2;

uint64_t MaxCompressedBytes(uint64_t bytes) { return bytes - bytes / 20; }

}  // namespace

bool Compress(DeltaEncoder& encoder, uint32_t element_bytes, uint64_t chunk_bytes,
              const PageSource& pages, std::span<const uint64_t> page_digests,
              std::vector<std::byte>& compressed) {
  CAIRN_CHECK(chunk_bytes >= kMinCompressibleBytes && chunk_bytes <= kMaxCompressibleBytes);
  const uint64_t page_count = kv::PageCount(chunk_bytes);
  const uint64_t first = (page_count - 1) / 2;
  const uint64_t end = std::min(first + kSamplePages, page_count);
  const uint64_t sample_bytes =
      std::min(end * kv::kPageBytes, chunk_bytes) - first * kv::kPageBytes;
  encoder.Begin(DeltaElementBytes(element_bytes, chunk_bytes), sample_bytes);
  for (uint64_t page = first; page < end; ++page) encoder.AddCompletePage(pages(page));
  const PlaneCodings codings = encoder.ChoosePlaneCodings();
  if (codings.stored_bytes > MaxCompressedBytes(sample_bytes)) return false;

  encoder.Begin(element_bytes, chunk_bytes);
  encoder.SetPlaneCodings(codings);
  for (uint64_t page = 0; page < page_count; ++page) encoder.AddCompletePage(pages(page));
  const auto finished = encoder.Finish(page_digests, MaxCompressedBytes(chunk_bytes));
  if (!finished) return false;
  const size_t bytes = finished->size();
  encoder.ExchangeBuffer(compressed);
  compressed.resize(bytes);
  return true;
}

std::optional<std::vector<std::byte>> CompressBytes(std::span<const std::byte> bytes,
                                                    uint32_t element_bytes,
                                                    std::span<const uint64_t> page_digests) {
  thread_local DeltaEncoder encoder;
  const auto page_at = [&](uint64_t page) {
    const uint64_t begin = page * kv::kPageBytes;
    return bytes.subspan(begin, std::min<uint64_t>(kv::kPageBytes, bytes.size() - begin));
  };
  std::vector<std::byte> compressed;
  if (!Compress(encoder, element_bytes, bytes.size(), page_at, page_digests, compressed)) {
    return std::nullopt;
  }
  return compressed;
}

}  // namespace cairn::core::internal
