#pragma once
/// The directory of the reader cache, which the processes of a user on a machine share.
///
///   DIR/cairn-cache-<uid>/               the folder, where <uid> is the effective user
///     CAIRN-CACHE                        the mark of a folder that this code has created
///     .lock                              held by the process that evicts
///     <storage>/<object>                 bytes of an object at their offsets, a sparse file, and
///     <storage>/<object>.xxh3            their digests
///     <storage>/newest-root              the name of the newest root that was read; written as
///                                        newest-root.<pid>
///
/// <storage> is the XXH3-64 of the identity of a storage as 16 hexadecimal digits, and <object> the
/// name of an object with '-' instead of '/'. Names of objects in the cache contain random ids, so
/// a name means the same bytes forever, even if a store is removed and created again.
///
/// In the file of digests, entry 0 is the length of the object, if it is known, and entry 1 + i is
/// for the granule i of 4 KiB. An entry has 16 bytes: a digest, and the part of the granule that is
/// present, [begin, end). A granule without an entry is absent (a digest of 0). Integers are
/// little-endian.
///   1. Bytes are written before their entry, and nothing is synced.
///   2. Every read computes the digests of all granules that it uses. So what a kill, a power
///      failure, a full disk or another process leaves half written is absent, and is read from the
///      storage again.
///   3. Bytes of an object never change. Processes that write the same granule write the same.
///
/// The cache writes and removes only its own files:
///   1. DIR may be any directory. Nothing in it is read or changed except the folder.
///   2. The folder is used only if it has the mark, which is put into a folder whose files all have
///      names of the cache, and only if it, and the folder of a storage, belong to the effective
///      user and have mode 0700.
///   3. Both folders are held open, so that another directory that gets their names is not used.
///   4. Only regular files with the names above are removed. No link is followed.
///
/// Each process looks at the space that the files take after it has added 1/64 of the limit. If
/// they take more than 7/8 of the limit, it removes the objects that were not used for the longest
/// time until they take 3/4. So up to 8 processes that fill the cache at once stay within the
/// limit, but for one request each if requests are larger than 1/64 of it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/read_range.h"
#include "kv/io/file_descriptor.h"

namespace cairn::kv::internal {

struct CacheOptions {
  std::string directory;
  /// Half of the space of the file system, if that is less.
  uint64_t max_bytes = uint64_t{32} << 30;
};

/// Failures never reach the caller: bytes that cannot be read are absent, and bytes that cannot be
/// written are not added. After a failure to write, nothing is added for ten seconds. Threads: all
/// members may run on many threads at once.
class CacheDirectory {
 public:
  /// `storage` is the identity of the one whose objects are cached. Creates the folders.
  CacheDirectory(const CacheOptions& options, std::string_view storage);

  /// kFailedPrecondition: a folder with the name of the cache's is not the cache's, or others may
  /// change it. Nothing is read from it or added.
  Result<void> CheckFolder() const;

  /// Returns whether `target` was filled with bytes of the object.
  bool Read(std::string_view name, uint64_t offset_bytes, std::span<std::byte> target);
  /// Returns the complete object if all of it was added at once and it has at most `limit_bytes`.
  std::optional<std::vector<std::byte>> ReadWhole(std::string_view name, uint64_t limit_bytes);
  /// Adds bytes of an object; all of them if `is_whole`.
  void Add(std::string_view name, uint64_t offset_bytes, std::span<const std::byte> bytes,
           bool is_whole = false);
  void Remove(std::string_view name);

  /// Returns the name that the last SetNewestRoot in any process recorded; "" if there is none.
  std::string ReadNewestRoot() const;
  void SetNewestRoot(std::string_view name);

  /// Removes objects if the files take more than the limit, unless another process does so.
  void Evict();

 private:
  class Object;
  /// The folders, held open.
  struct Folders {
    FileDescriptor cache;    // DIR/cairn-cache-<uid>
    FileDescriptor storage;  // <storage> in it
  };
  using FoldersPtr = std::shared_ptr<const Folders>;  // owners: this object and its running calls

  /// Opens the folders; creates absent ones.
  Result<FoldersPtr> MakeFolders() const;
  /// Uses new folders. Null if they cannot be used.
  FoldersPtr OpenFolders();
  /// Returns the folders, which may have been removed since they were opened; null if there are
  /// none.
  FoldersPtr HeldFolders() const;
  FilePlace PlaceOf(const Folders& folders, std::string_view name) const;
  /// kNotFound: it is absent, and `create` is false.
  Result<Object> Open(std::string_view name, bool create);
  Result<void> TryAdd(std::string_view name, uint64_t offset_bytes,
                      std::span<const std::byte> bytes, bool is_whole);
  uint64_t LimitBytes(const Folders& folders) const;

  const std::string directory_;     // DIR, absolute
  const std::string storage_name_;  // <storage>
  const uint64_t max_bytes_;
  mutable Mutex mutex_;
  FoldersPtr folders_ CAIRN_GUARDED_BY(mutex_);
  Result<void> folder_check_ CAIRN_GUARDED_BY(mutex_);
  uint64_t added_bytes_ CAIRN_GUARDED_BY(mutex_);  // since the last eviction
  std::chrono::steady_clock::time_point blocked_until_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::internal
