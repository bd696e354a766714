#pragma once
/// Bytes in memory as a payload, copied to blocks or borrowed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/base/payload.h"

namespace cairn::kv::testing {

/// Payload that does not expose its memory, so that the writer always copies it. The bytes must
/// outlive it.
class CopiedPayload : public Payload {
 public:
  explicit CopiedPayload(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t length_bytes() const override { return bytes_.size(); }
  Result<void> CopyTo(uint64_t begin_bytes, std::span<std::byte> target) const override {
    std::ranges::copy(bytes_.subspan(begin_bytes, target.size()), target.begin());
    return {};
  }

 protected:
  std::span<const std::byte> bytes_;
};

/// Payload that the writer may write directly from its memory, until Commit.
class BorrowedPayload final : public CopiedPayload {
 public:
  using CopiedPayload::CopiedPayload;
  std::span<const std::byte> memory() const override { return bytes_; }
};

}  // namespace cairn::kv::testing
