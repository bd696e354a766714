#pragma once
/// Objects in the memory of this process: for tests, and for stores that need not outlive it.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/base/mutex.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Fails only as the contract of Storage demands: kConflict, kNotFound and kDataLoss. The read of a
/// large object does not block other threads.
class MemoryStorage final : public Storage {
 public:
  /// `name` serves only for the address, "memory:NAME". To share a storage by its name, use
  /// Shared.
  explicit MemoryStorage(std::string_view name) : address_(fmt::format("memory:{}", name)) {}

  /// Returns the storage with this name, which all callers of this process share. It exists until
  /// the process ends.
  static std::shared_ptr<MemoryStorage> Shared(const std::string& name) {
    // Never destroyed, because stores may outlive static objects.
    static Mutex& mutex = *new Mutex;
    static auto& storages = *new std::map<std::string, std::shared_ptr<MemoryStorage>>;
    const MutexLock lock(mutex);
    std::shared_ptr<MemoryStorage>& storage = storages[name];
    if (storage == nullptr) storage = std::make_shared<MemoryStorage>(name);
    return storage;
  }

  const std::string& address() const override { return address_; }

  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override {
    CAIRN_CHECK(IsObjectName(name));
    Object object = Copy(bytes);
    const MutexLock lock(mutex_);
    objects_.insert_or_assign(std::string(name), std::move(object));
    ++write_count_;
    changed_.NotifyAll();
    return {};
  }

  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override {
    CAIRN_CHECK(IsObjectName(name));
    return Insert(name, Copy(bytes));
  }

  /// kConflict: the object exists.
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override {
    CAIRN_CHECK(IsObjectName(name));
    const MutexLock lock(mutex_);
    if (objects_.contains(name)) {
      return Fail(ErrorCode::kConflict, "the object exists", ObjectPath(address_, name));
    }
    return std::make_unique<Writer>(*this, name);
  }

  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override {
    CAIRN_TRY_ASSIGN(const Object object, Find(name));
    const uint64_t size_bytes = object->size();
    if (offset_bytes > size_bytes || target.size() > size_bytes - offset_bytes) {
      return Fail(EndsBeforeRange(ObjectPath(address_, name), size_bytes, offset_bytes));
    }
    std::copy_n(object->begin() + static_cast<ptrdiff_t>(offset_bytes), target.size(),
                target.begin());
    return {};
  }

  Result<uint64_t> Size(std::string_view name) override {
    CAIRN_TRY_ASSIGN(const Object object, Find(name));
    return object->size();
  }

  Result<std::vector<std::string>> List(std::string_view prefix) override {
    CAIRN_CHECK(IsObjectPrefix(prefix));
    std::vector<std::string> names;
    const MutexLock lock(mutex_);
    for (auto entry = objects_.lower_bound(prefix);
         entry != objects_.end() && entry->first.starts_with(prefix); ++entry) {
      names.push_back(entry->first);
    }
    return names;
  }

  Result<void> Remove(std::string_view name) override {
    CAIRN_CHECK(IsObjectName(name));
    const MutexLock lock(mutex_);
    const auto entry = objects_.find(name);
    if (entry != objects_.end()) objects_.erase(entry);
    return {};
  }

  /// Returns after the next write of any object.
  void AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) override {
    CAIRN_CHECK(IsObjectPrefix(prefix));
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    const MutexLock lock(mutex_);
    const uint64_t before = write_count_;
    while (write_count_ == before && changed_.WaitUntil(mutex_, deadline)) {
    }
  }

 private:
  // Never changed, so that readers can copy from it without the mutex.
  using Object = std::shared_ptr<const std::vector<std::byte>>;

  /// Collects the pieces, and inserts the object in Finish. Ownership: `storage` outlives it.
  class Writer final : public ObjectWriter {
   public:
    Writer(MemoryStorage& storage, std::string_view name) : storage_(storage), name_(name) {}

    Result<void> Append(std::span<const std::byte> bytes) override {
      bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
      return {};
    }
    Result<void> Finish() override {
      return storage_.Insert(name_,
                             std::make_shared<const std::vector<std::byte>>(std::move(bytes_)));
    }

   private:
    MemoryStorage& storage_;
    const std::string name_;
    std::vector<std::byte> bytes_;
  };

  static Object Copy(std::span<const std::byte> bytes) {
    return std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  }

  Result<Object> Find(std::string_view name) {
    CAIRN_CHECK(IsObjectName(name));
    const MutexLock lock(mutex_);
    const auto entry = objects_.find(name);
    if (entry != objects_.end()) return entry->second;
    return Fail(ErrorCode::kNotFound, "there is no such object", ObjectPath(address_, name));
  }

  Result<void> Insert(std::string_view name, Object object) {
    const MutexLock lock(mutex_);
    if (!objects_.try_emplace(std::string(name), std::move(object)).second) {
      return Fail(ErrorCode::kConflict, "the object exists", ObjectPath(address_, name));
    }
    ++write_count_;
    changed_.NotifyAll();
    return {};
  }

  const std::string address_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Object, std::less<>> objects_ CAIRN_GUARDED_BY(mutex_);
  uint64_t write_count_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::kv::internal
