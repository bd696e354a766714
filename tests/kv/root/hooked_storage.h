#pragma once
/// A storage in memory whose operations tests can replace.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kv/storage/files/internal/memory_storage.h"
#include "tests/support/forwarding_storage.h"

namespace cairn::kv::testing {

/// A storage in memory with hooks instead of its operations, and a count of its reads.
class HookedStorage final : public cairn::testing::ForwardingStorage {
 public:
  HookedStorage() : ForwardingStorage(std::make_shared<internal::MemoryStorage>("test")) {}

  using PutHook = std::function<Result<void>(std::string_view, std::span<const std::byte>)>;
  PutHook on_put_if_absent;
  std::function<Result<uint64_t>(std::string_view)> on_size;
  std::function<Result<std::vector<std::string>>()> on_list;
  std::function<void(std::string_view)> before_read;
  std::function<void(uint32_t end_epoch)> on_remove_leftovers;
  std::atomic<int> size_count = 0;
  uint32_t small_requests = 1;
  bool has_current_listings = false;

  Storage& base() { return *base_; }
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override {
    return on_put_if_absent ? on_put_if_absent(name, bytes) : base_->PutIfAbsent(name, bytes);
  }
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override {
    if (before_read) before_read(name);
    return base_->ReadRange(name, offset_bytes, target);
  }
  Result<uint64_t> Size(std::string_view name) override {
    ++size_count;
    return on_size ? on_size(name) : base_->Size(name);
  }
  Result<std::vector<std::string>> List(std::string_view prefix) override {
    return on_list ? on_list() : base_->List(prefix);
  }
  Result<void> RemoveLeftovers(uint32_t end_epoch) override {
    if (on_remove_leftovers) on_remove_leftovers(end_epoch);
    return {};
  }
  TransferSizes transfer_sizes() const override { return {.small_requests = small_requests}; }
  bool listings_are_current() const override { return has_current_listings; }
};

}  // namespace cairn::kv::testing
