#pragma once
/// Chunks of tensors in host memory and in device memory, and deltas, as payload of a segment.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "core/save/internal/device_save.h"
#include "core/tensor/internal/tensor_ref.h"
#include "core/tensor/strided_copy.h"
#include "core/tensor/tensor.h"
#include "kv/base/digest.h"
#include "kv/base/payload.h"

namespace cairn::core::internal {

/// Bytes [begin_bytes, begin_bytes + length_bytes) of the row-major form of a tensor in host
/// memory. Ownership: borrows the memory of the tensor, its shape and its strides. Threads:
/// immutable.
class HostPayload final : public kv::Payload {
 public:
  /// `may_change`: the tensor is the caller's, whose other threads may write to it.
  HostPayload(const TensorRef& source, uint64_t begin_bytes, uint64_t length_bytes,
              bool may_change = false)
      : source_(source),
        data_(source.is_contiguous() ? source.data + begin_bytes : nullptr),
        begin_bytes_(begin_bytes),
        length_bytes_(length_bytes),
        may_change_(may_change) {}

  uint64_t length_bytes() const override { return length_bytes_; }
  std::span<const std::byte> memory() const override {
    if (data_ == nullptr || may_change_) return {};
    return {data_, length_bytes_};
  }
  bool may_change() const override { return may_change_; }
  Result<void> CopyTo(uint64_t begin_bytes, std::span<std::byte> target) const override {
    if (data_ != nullptr) {
      std::memcpy(target.data(), data_ + begin_bytes, target.size());
    } else {
      GatherBytes(source_.view(), begin_bytes_ + begin_bytes, target);
    }
    return {};
  }
  /// Returns a page. A page of a tensor that is not contiguous is gathered to `scratch`. Requires
  /// page < PageCount(length_bytes()) and scratch.size() == kPageBytes.
  std::span<const std::byte> Page(uint64_t page, std::span<std::byte> scratch) const {
    const uint64_t begin = page * kv::kPageBytes;
    CAIRN_CHECK(begin < length_bytes_ && scratch.size() >= kv::kPageBytes);
    const uint64_t count = std::min(kv::kPageBytes, length_bytes_ - begin);
    if (data_ != nullptr) return {data_ + begin, count};
    GatherBytes(source_.view(), begin_bytes_ + begin, scratch.first(count));
    return scratch.first(count);
  }

  /// As Page, but a page that may change is copied to `scratch`, so that it can be read twice.
  std::span<const std::byte> StablePage(uint64_t page, std::span<std::byte> scratch) const {
    const std::span<const std::byte> bytes = Page(page, scratch);
    if (!may_change_ || bytes.data() == scratch.data()) return bytes;
    std::memcpy(scratch.data(), bytes.data(), bytes.size());
    return scratch.first(bytes.size());
  }
  kv::Digest ComputeDigest() const {
    std::vector<std::byte> scratch(kv::kPageBytes);
    std::vector<uint64_t> page_digests(kv::PageCount(length_bytes_));
    DigestPages(scratch, page_digests);
    return kv::RootDigest(page_digests, length_bytes_);
  }
  /// Writes the digests of all pages to `page_digests`, which has one element for each.
  void DigestPages(std::span<std::byte> scratch, std::span<uint64_t> page_digests) const {
    for (size_t page = 0; page < page_digests.size(); ++page) {
      page_digests[page] = kv::PageDigest(Page(page, scratch));
    }
  }

 private:
  const TensorRef source_;
  const std::byte* const data_;  // null: not contiguous
  const uint64_t begin_bytes_;
  const uint64_t length_bytes_;
  const bool may_change_;
};

/// Bytes [begin_bytes, begin_bytes + length_bytes) of the row-major form of a tensor in device
/// memory. Ownership: borrows the memory of the tensor and the DeviceSave. Threads: one at a time.
class DevicePayload final : public kv::Payload {
 public:
  DevicePayload(DeviceSave& device, TensorView source, uint64_t begin_bytes, uint64_t length_bytes)
      : device_(device),
        source_(std::move(source)),
        begin_bytes_(begin_bytes),
        length_bytes_(length_bytes) {}

  uint64_t length_bytes() const override { return length_bytes_; }
  kv::CopyQueue* queue() const override { return &device_; }
  Result<void> CopyTo(uint64_t begin_bytes, std::span<std::byte> target) const override {
    return device_.StartCopy(source_, begin_bytes_ + begin_bytes, target);
  }

 private:
  DeviceSave& device_;
  const TensorView source_;
  const uint64_t begin_bytes_;
  const uint64_t length_bytes_;
};

}  // namespace cairn::core::internal
