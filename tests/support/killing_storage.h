#pragma once
/// A storage that ends the process before its n-th change, for tests of crashes.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/forwarding_storage.h"

namespace cairn::testing {

/// Has the contract of `base`. A change is a put, the end of a writer or of an upload, the begin of
/// an upload, a write of a part, a removal, or the removal of leftovers. Objects are not files,
/// because changes of files could not be counted. Threads: those of the base.
class KillingStorage final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;

  /// From now on, counts changes, and dies with SIGKILL before the n-th one, n from 1 on.
  void DieBefore(uint64_t n) { left_ = static_cast<int64_t>(n); }

  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override {
    Count();
    return base_->Put(name, bytes);
  }
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override {
    Count();
    return base_->PutIfAbsent(name, bytes);
  }
  Result<std::unique_ptr<kv::ObjectWriter>> Create(std::string_view name) override {
    CAIRN_TRY_ASSIGN(auto base, base_->Create(name));
    return std::make_unique<Writer>(*this, std::move(base));
  }
  Result<std::vector<std::byte>> Read(std::string_view name, uint64_t limit_bytes) override {
    return base_->Read(name, limit_bytes);
  }
  Result<void> Remove(std::string_view name) override {
    Count();
    return base_->Remove(name);
  }
  Result<void> RemoveLeftovers(uint32_t end_epoch) override {
    Count();
    return base_->RemoveLeftovers(end_epoch);
  }
  bool listings_are_current() const override { return base_->listings_are_current(); }
  kv::TransferSizes transfer_sizes() const override { return base_->transfer_sizes(); }
  Result<std::unique_ptr<kv::IoQueue>> MakeQueue(uint32_t depth) override {
    return base_->MakeQueue(depth);
  }
  Result<std::unique_ptr<kv::Upload>> BeginUpload(std::string_view name,
                                                  uint64_t part_bytes) override {
    Count();
    CAIRN_TRY_ASSIGN(auto base, base_->BeginUpload(name, part_bytes));
    return std::make_unique<Parts>(*this, std::move(base));
  }
  void AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) override {
    base_->AwaitChange(prefix, timeout);
  }

 private:
  class Writer final : public kv::ObjectWriter {
   public:
    Writer(KillingStorage& storage, std::unique_ptr<kv::ObjectWriter> base)
        : storage_(storage), base_(std::move(base)) {}
    Result<void> Append(std::span<const std::byte> bytes) override { return base_->Append(bytes); }
    Result<void> Finish() override {
      storage_.Count();
      return base_->Finish();
    }

   private:
    KillingStorage& storage_;
    const std::unique_ptr<kv::ObjectWriter> base_;
  };

  class Parts final : public kv::Upload {
   public:
    Parts(KillingStorage& storage, std::unique_ptr<kv::Upload> base)
        : storage_(storage), base_(std::move(base)) {}
    void StartWrite(std::span<const std::byte> bytes, uint64_t offset_bytes, Done done) override {
      storage_.Count();
      base_->StartWrite(bytes, offset_bytes, std::move(done));
    }
    Result<void> Finish(uint64_t size_bytes) override {
      storage_.Count();
      return base_->Finish(size_bytes);
    }

   private:
    KillingStorage& storage_;
    const std::unique_ptr<kv::Upload> base_;
  };

  void Count() {
    if (left_.fetch_sub(1) == 1) ::kill(::getpid(), SIGKILL);
  }

  std::atomic<int64_t> left_ = 0;  // counts below 0 without an effect
};

}  // namespace cairn::testing
