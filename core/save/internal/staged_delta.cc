#include "core/save/internal/staged_delta.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/save/internal/chunk_deltas.h"

namespace cairn::core::internal {

PlannedShard::ChunkPages CopyAndEncode(std::span<const std::byte> bytes,
                                       std::span<std::byte> staged, const kv::Digest& base,
                                       uint32_t element_bytes, StagedDeltaScratch& scratch) {
  DeltaEncoder& encoder = scratch.encoder;
  PlannedShard::ChunkPages pages;
  std::vector<uint64_t> base_page_digests;
  uint64_t changed_bytes = 0;
  encoder.Begin(element_bytes, bytes.size());
  for (uint64_t at = 0; at < bytes.size(); at += kv::kPageBytes) {
    const uint64_t count = std::min<uint64_t>(kv::kPageBytes, bytes.size() - at);
    const std::span<const std::byte> page = bytes.subspan(at, count);
    const std::span<std::byte> before = staged.subspan(at, count);
    base_page_digests.push_back(kv::PageDigest(before));
    if (std::memcmp(page.data(), before.data(), count) == 0) {
      pages.page_digests.push_back(base_page_digests.back());
      encoder.AddUnchangedPage();
      continue;
    }
    // Other threads may write to the tensor. Its delta and its digest must belong to one value.
    const std::span<std::byte> after = std::span(scratch.page).first(count);
    std::memcpy(after.data(), page.data(), count);
    pages.page_digests.push_back(kv::PageDigest(after));
    encoder.AddPage(before, after);
    changed_bytes += count;
    std::memcpy(before.data(), after.data(), count);
    if (!encoder.is_too_long(MaxDeltaBytes(bytes.size(), bytes.size()))) continue;
    std::memcpy(staged.data() + at + count, bytes.data() + at + count, bytes.size() - at - count);
    return {};
  }
  if (kv::RootDigest(base_page_digests, bytes.size()) != base) return pages;
  const auto delta = encoder.Finish(pages.page_digests, MaxDeltaBytes(bytes.size(), changed_bytes));
  if (!delta) return pages;
  pages.delta.assign(delta->begin(), delta->end());
  pages.delta_base = base;
  return pages;
}

}  // namespace cairn::core::internal
