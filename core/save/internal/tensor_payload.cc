#include "core/save/internal/tensor_payload.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/tensor/strided_copy.h"
#include "kv/base/digest.h"

namespace cairn::core::internal {

Result<void> HostPayload::CopyTo(uint64_t begin_bytes, std::span<std::byte> target) const {
  GatherBytes(source_, begin_bytes_ + begin_bytes, target);
  return {};
}

std::span<const std::byte> HostPayload::Page(uint64_t page, std::span<std::byte> scratch) const {
  const uint64_t begin = page * kv::kPageBytes;
  CAIRN_CHECK(begin < length_bytes_ && scratch.size() >= kv::kPageBytes);
  const uint64_t count = std::min(kv::kPageBytes, length_bytes_ - begin);
  if (data_ != nullptr) return {data_ + begin, count};
  GatherBytes(source_, begin_bytes_ + begin, scratch.first(count));
  return scratch.first(count);
}

std::span<const std::byte> HostPayload::StablePage(uint64_t page,
                                                   std::span<std::byte> scratch) const {
  const std::span<const std::byte> bytes = Page(page, scratch);
  if (!may_change_ || bytes.data() == scratch.data()) return bytes;
  std::memcpy(scratch.data(), bytes.data(), bytes.size());
  return scratch.first(bytes.size());
}

kv::Digest HostPayload::DigestWith(uint64_t page_bytes) const {
  std::vector<uint64_t> page_digests;
  std::vector<std::byte> page;
  for (uint64_t begin = 0; begin < length_bytes_; begin += page_bytes) {
    page.resize(std::min(page_bytes, length_bytes_ - begin));
    GatherBytes(source_, begin_bytes_ + begin, page);
    page_digests.push_back(kv::PageDigest(page));
  }
  return kv::RootDigest(page_digests, length_bytes_);
}

void HostPayload::DigestPages(std::span<std::byte> scratch,
                              std::span<uint64_t> page_digests) const {
  for (size_t page = 0; page < page_digests.size(); ++page) {
    page_digests[page] = kv::PageDigest(Page(page, scratch));
  }
}

Result<void> DevicePayload::CopyTo(uint64_t begin_bytes, std::span<std::byte> target) const {
  return device_.StartCopy(source_, begin_bytes_ + begin_bytes, target);
}

}  // namespace cairn::core::internal
