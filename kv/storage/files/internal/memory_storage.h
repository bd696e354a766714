#pragma once
/// Objects in the memory of this process: for tests, and for stores that need not outlive it.

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/mutex.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Fails only as the contract of Storage demands: kConflict, kNotFound and kDataLoss. The read of a
/// large object does not block other threads.
class MemoryStorage final : public Storage {
 public:
  /// `name` serves only for the address, "memory:NAME". To share a storage by its name, use
  /// Shared.
  explicit MemoryStorage(std::string_view name);

  /// Returns the storage with this name, which all callers of this process share. It exists until
  /// the process ends.
  static std::shared_ptr<MemoryStorage> Shared(const std::string& name);

  const std::string& address() const override { return address_; }
  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override;
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override;
  /// kConflict: the object exists.
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override;
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override;
  Result<uint64_t> Size(std::string_view name) override;
  Result<std::vector<std::string>> List(std::string_view prefix) override;
  Result<void> Remove(std::string_view name) override;
  /// Returns after the next write of any object.
  void AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) override;

 private:
  class Writer;
  // Never changed, so that readers can copy from it without the mutex.
  using Object = std::shared_ptr<const std::vector<std::byte>>;

  Result<Object> Find(std::string_view name);
  Result<void> Insert(std::string_view name, Object object);

  const std::string address_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Object, std::less<>> objects_ CAIRN_GUARDED_BY(mutex_);
  uint64_t write_count_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::kv::internal
