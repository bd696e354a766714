#include "core/save/internal/tensor_payload.h"

#include <algorithm>

#include "core/tensor/strided_copy.h"
#include "kv/digest.h"

namespace cairn::core::internal {

std::span<const std::byte> HostPayload::memory() const {
  if (!IsContiguous(source_.shape, source_.strides)) return {};
  return {source_.data + begin_bytes_, length_bytes_};
}

Result<void> HostPayload::CopyTo(uint64_t begin_bytes, std::span<std::byte> target) const {
  GatherBytes(source_, begin_bytes_ + begin_bytes, target);
  return {};
}

uint64_t HostPayload::PageDigest(uint64_t page, std::span<std::byte> scratch) const {
  const uint64_t begin = page * kv::kPageBytes;
  CAIRN_CHECK(begin < length_bytes_ && scratch.size() >= kv::kPageBytes);
  const uint64_t count = std::min(kv::kPageBytes, length_bytes_ - begin);
  if (const auto bytes = memory(); !bytes.empty())
    return kv::PageDigest(bytes.subspan(begin, count));
  GatherBytes(source_, begin_bytes_ + begin, scratch.first(count));
  return kv::PageDigest(scratch.first(count));
}

Result<void> DevicePayload::CopyTo(uint64_t begin_bytes, std::span<std::byte> target) const {
  return device_.StartCopy(source_, begin_bytes_ + begin_bytes, target);
}

Result<bool> DevicePayload::WriteTo(uint64_t begin_bytes, uint64_t length_bytes, int fd,
                                    uint64_t offset_bytes) const {
  return device_.StartWrite(source_, begin_bytes_ + begin_bytes, length_bytes, fd, offset_bytes);
}

}  // namespace cairn::core::internal
