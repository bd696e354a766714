#pragma once
/// A storage that forwards its operations to another one, for test storages that change some.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/storage/storage.h"

namespace cairn::testing {

/// Reads of whole objects, queues and uploads are made of the operations below. Ownership: shares
/// `base` with the test. Threads: those of the base.
class ForwardingStorage : public kv::Storage {
 public:
  explicit ForwardingStorage(std::shared_ptr<kv::Storage> base) : base_(std::move(base)) {}

  const std::string& address() const override { return base_->address(); }
  std::string identity() const override { return base_->identity(); }
  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override {
    return base_->Put(name, bytes);
  }
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override {
    return base_->PutIfAbsent(name, bytes);
  }
  Result<std::unique_ptr<kv::ObjectWriter>> Create(std::string_view name) override {
    return base_->Create(name);
  }
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override {
    return base_->ReadRange(name, offset_bytes, target);
  }
  Result<uint64_t> Size(std::string_view name) override { return base_->Size(name); }
  Result<std::vector<std::string>> List(std::string_view prefix) override {
    return base_->List(prefix);
  }
  Result<void> Remove(std::string_view name) override { return base_->Remove(name); }
  Result<void> RemoveLeftovers(uint32_t end_epoch) override {
    return base_->RemoveLeftovers(end_epoch);
  }

 protected:
  const std::shared_ptr<kv::Storage> base_;
};

}  // namespace cairn::testing
