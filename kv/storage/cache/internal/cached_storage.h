#pragma once
/// A storage whose immutable objects are read from a cache on a local disk.
///
/// Only segments, tables and pages are cached: their names contain random ids, so that a name means
/// the same bytes forever. The identity of the store and its roots are read from the storage every
/// time: a store that is removed and created again, or restored from a backup, has other roots with
/// the same numbers. To save the round trip of the newest root, List of the roots reads, at the
/// same time, the root that was the newest one before.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/mutex.h"
#include "kv/storage/cache/internal/cache_directory.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Has the contract of `base`, except that segments, tables and pages that were removed may remain
/// readable. Objects must not be files. Ownership: shares `base` with the caller.
class CachedStorage final : public Storage {
 public:
  CachedStorage(std::shared_ptr<Storage> base, const CacheOptions& options);

  const std::string& address() const override { return base_->address(); }
  std::string identity() const override { return base_->identity(); }
  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override {
    return base_->Put(name, bytes);
  }
  Result<void> Overwrite(std::string_view name, std::span<const std::byte> bytes) override {
    return base_->Overwrite(name, bytes);
  }
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override {
    return base_->PutIfAbsent(name, bytes);
  }
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override {
    return base_->Create(name);
  }
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override;
  Result<std::vector<std::byte>> Read(std::string_view name, uint64_t limit_bytes) override;
  Result<uint64_t> Size(std::string_view name) override { return base_->Size(name); }
  Result<std::vector<std::string>> List(std::string_view prefix) override;
  Result<void> Remove(std::string_view name) override;
  Result<void> RemoveLeftovers(uint32_t end_epoch) override {
    return base_->RemoveLeftovers(end_epoch);
  }
  TransferSizes transfer_sizes() const override { return base_->transfer_sizes(); }
  bool listings_are_current() const override { return base_->listings_are_current(); }
  bool has_been_read() const override;
  Result<std::unique_ptr<IoQueue>> MakeQueue(uint32_t depth) override;
  Result<std::unique_ptr<Upload>> BeginUpload(std::string_view name,
                                              uint64_t write_bytes) override {
    return base_->BeginUpload(name, write_bytes);
  }
  void AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) override {
    base_->AwaitChange(prefix, timeout);
  }

  /// kFailedPrecondition: the cache must not be used (cache_directory.h), and is not used.
  Result<void> CheckCache() const { return cache_.CheckFolder(); }

 private:
  struct Object {
    std::string name;
    std::vector<std::byte> bytes;
  };

  /// Lists the roots, and reads the root that was the newest one before.
  Result<std::vector<std::string>> ListRoots(std::string_view prefix);
  /// Returns the bytes that ListRoots has read, once; nothing if it has read another object.
  std::optional<std::vector<std::byte>> TakeReadAhead(std::string_view name);
  void NoteRoot(std::string_view name);

  const std::shared_ptr<Storage> base_;
  CacheDirectory cache_;
  mutable Mutex mutex_;
  std::string newest_root_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Object> read_ahead_ CAIRN_GUARDED_BY(mutex_);
};

/// Returns a storage that reads `base` through the cache; `base` itself if there is no cache, or
/// its objects are files. kInvalidArgument: CAIRN_CACHE_BYTES has another value than those above.
/// kFailedPrecondition: the folder is not the cache's, or others may change it.
Result<std::shared_ptr<Storage>> WithReaderCache(std::shared_ptr<Storage> base);

}  // namespace cairn::kv::internal
