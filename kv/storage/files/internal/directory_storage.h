#pragma once
/// Objects as files below a directory, on a local or a shared file system.
///
/// Protocol. A file appears under its name only with its complete, synced contents:
///   1. write `.<random>.tmp` in the directory of the name, and fdatasync it;
///   2. Put: rename it to the name. PutIfAbsent: link() it to the name, which fails if the name
///      exists. On every file system that keeps POSIX, of several links exactly one succeeds;
///   3. fsync the directory, which makes the name durable;
///   4. PutIfAbsent: unlink the temporary name.
/// PutVolatile and PutIfAbsentVolatile sync nothing. Overwrite writes over the bytes of a file.
/// Objects that Create writes, and files that callers create with LocalFiles, exist under their
/// names at once: no root names them before they are synced.
///
/// If step 3 fails, readers may see a name that a power failure removes. The next read of such a
/// name by this object repeats the fsync first, and fails if that fails. So a writer that finds out
/// by reading whether its put was performed does not rely on a name that is not durable.
///
/// Remove is not synced: an object that was removed shortly before a power failure may exist again.
///
/// A storage is the directory that it has opened, whatever its path means later:
///   1. The path becomes absolute when the storage is constructed.
///   2. The first operation that finds or creates the directory opens it. From then on, all names
///      are looked up in the open directory, so that a rename of the directory, a link that is
///      replaced, or another directory at the path changes nothing. Only messages use the path.
///   3. A directory that was removed is not created again: writes fail, and so does List.
/// The first element of a name may be a symbolic link to a directory (a folder on another disk). No
/// other links to directories are followed when names are listed, or temporary files removed.

#include <atomic>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "kv/base/mutex.h"
#include "kv/io/file_descriptor.h"
#include "kv/io/internal/file.h"
#include "kv/storage/files/internal/directory_entries.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Returns whether this is a name of step 1 of the protocol, which an object never has.
bool IsTemporaryName(std::string_view file);

/// kInvalidArgument: the path begins with '~', which only shells replace: it would name a directory
/// "~" below the working directory.
Result<void> CheckNamesNoHome(const std::string& path);

/// System calls that change something, and no others, pass a fault point first: "<first element of
/// the name>.<operation>", such as "roots.link". The operations, in the order of a PutIfAbsent, are
/// create (of a file or a directory), write, sync, link (of Put: rename), linked, directory_sync,
/// done, and remove. A volatile put passes neither sync, linked, directory_sync nor done, and an
/// Overwrite only write. At
/// "linked" the name exists but is not synced; at "done" it is.
class DirectoryStorage final : public Storage, public LocalFiles {
 public:
  /// Creates and opens nothing. The first write creates the directory at `path`. It fails with
  /// kNotFound if the parent of that does not exist.
  explicit DirectoryStorage(std::string path);

  const std::string& address() const override { return root_; }
  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override {
    return PutFile(name, bytes, Existing::kReplace, Durability::kSynced);
  }
  Result<void> PutVolatile(std::string_view name, std::span<const std::byte> bytes) override {
    return PutFile(name, bytes, Existing::kReplace, Durability::kNone);
  }
  /// Puts the file as PutVolatile if there is none with this length and this name alone: a copy of
  /// the directory that consists of hard links must not change.
  Result<void> Overwrite(std::string_view name, std::span<const std::byte> bytes) override;
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override {
    return PutFile(name, bytes, Existing::kKeep, Durability::kSynced);
  }
  Result<void> PutIfAbsentVolatile(std::string_view name,
                                   std::span<const std::byte> bytes) override {
    return PutFile(name, bytes, Existing::kKeep, Durability::kNone);
  }
  /// kConflict: the file exists.
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override;
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override;
  /// Reads from one open file, so all bytes are of the same object.
  Result<std::vector<std::byte>> Read(std::string_view name, uint64_t limit_bytes) override;
  Result<uint64_t> Size(std::string_view name) override;
  /// Skips files whose names are not names of objects, such as temporary files and "lost+found".
  Result<std::vector<std::string>> List(std::string_view prefix) override;
  /// Also removes the directory of the name if it is empty and is itself in a directory, such as
  /// "pending/<attempt>".
  Result<void> Remove(std::string_view name) override;
  /// Removes temporary files of the directory, of the folders of a store, and of the folders of
  /// attempts in pending/. A put of another process that loses its file writes it again.
  Result<void> RemoveLeftovers(uint32_t end_epoch) override;
  LocalFiles* local_files() override { return this; }
  /// Uses inotify, which does not report what other machines change, so callers wait for short
  /// times and look again.
  void AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) override;

  Result<FilePlace> PlaceOf(std::string_view name) override;
  Result<void> PrepareFile(std::string_view name) override;
  Result<void> SyncNames(std::string_view prefix) override;

 private:
  class Writer;

  enum class Durability { kNone, kSynced };
  enum class Existing { kKeep, kReplace };

  /// Returns the path of an object, or of the directory for "", for messages.
  std::string PathOf(std::string_view name) const;
  /// Returns the descriptor of the directory. kNotFound: it does not exist.
  Result<int> Directory();
  /// Returns the error for a directory that was removed since it was opened; nothing if this one
  /// was not.
  std::optional<Error> WasRemoved() const;
  /// Removes the temporary files in a folder ("tables/"), or in the directory ("").
  Result<void> RemoveTemporaries(const std::string& prefix);
  /// Returns the path of a directory for inotify, which has no other way to name one.
  std::string WatchedPath(std::string_view directory);

  /// Writes an object under a temporary name, and renames or links it to its name. kConflict: it
  /// exists, and is kept.
  Result<void> PutFile(std::string_view name, std::span<const std::byte> bytes, Existing existing,
                       Durability durability);
  /// Writes a temporary file next to `name` and returns its place.
  Result<FilePlace> WriteTemporary(std::string_view name, std::span<const std::byte> bytes,
                                   Durability durability);
  struct CreatedFile {
    FilePlace place;
    File file;
  };
  /// Creates the file `file_name` in the directory of `name`, and that directory if it does not
  /// exist. kConflict: the file exists.
  Result<CreatedFile> CreateFile(std::string_view name, const std::string& file_name,
                                 Durability durability);
  /// Creates a directory ("" for the root) with the directories above it. Makes their names durable
  /// if `durability` requires it, and the root's name always if this call has created it.
  Result<void> MakeDirectory(std::string_view directory, std::string_view name,
                             Durability durability);
  /// Passes "linked", syncs the directory of `name`, and passes "done".
  Result<void> FinishNames(std::string_view name);
  /// Syncs the directory of `name`, or remembers that this remains to be done.
  Result<void> SyncDirectoryOf(std::string_view name);
  void RememberUnsynced(std::string_view directory);
  /// Syncs the directory of `name` if an earlier attempt to do so has failed.
  Result<void> SyncBeforeRead(std::string_view name);

  const std::string root_;                  // absolute
  std::atomic<int> directory_ = -1;         // the descriptor in held_, which remains open
  std::atomic<bool> has_unsynced_ = false;  // whether unsynced_ has elements
  Mutex mutex_;
  FileDescriptor held_ CAIRN_GUARDED_BY(mutex_);
  // Directories whose names this object has made durable, relative to the root.
  std::set<std::string, std::less<>> durable_ CAIRN_GUARDED_BY(mutex_);
  // Directories with names that may not be durable.
  std::set<std::string, std::less<>> unsynced_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::internal
