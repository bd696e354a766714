// Objects as files: durable names, ranges, listings.

#include "kv/internal/storage/directory_storage.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "kv/internal/io/fault_point.h"
#include "kv/internal/io/file.h"
#include "kv/internal/storage/directory_entries.h"
#include "kv/internal/storage/name_check.h"

namespace cairn::kv::internal {
namespace {

constexpr std::string_view kTemporarySuffix = ".tmp";
// Another process may remove an empty directory between its creation and that of a file in it, and
// a writer that takes the store removes temporary files, also those of others who try to take it.
constexpr int kCreateAttempts = 8;
// A process writes to few directories at a time. To forget one costs a mkdir and an fsync.
constexpr size_t kMaxDurableCount = 64;

/// Returns the directory of a name or of a directory; "" is the root.
std::string_view DirectoryOf(std::string_view name) {
  const size_t slash = name.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : name.substr(0, slash);
}

std::string PointName(std::string_view name, std::string_view operation) {
  return fmt::format("{}.{}", name.substr(0, name.find('/')), operation);
}

Result<void> PassPoint(std::string_view name, std::string_view operation, std::string_view path) {
  if (const int fault = FaultPoint(PointName(name, operation).c_str())) {
    return Fail(SystemError(fault, fmt::format("cannot {}", operation), path));
  }
  return {};
}

Result<void> Unlink(std::string_view name, const std::string& path) {
  CAIRN_TRY(PassPoint(name, "remove", path));
  return RemoveFile(path);
}

Result<uint64_t> RandomNumber() {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    return Fail(SystemError(errno, "cannot get random bytes"));
  }
  return number;
}

bool IsTemporary(std::string_view file) {
  return file.size() == 1 + 16 + kTemporarySuffix.size() && file.starts_with('.') &&
         file.ends_with(kTemporarySuffix);
}

std::string WithoutTrailingSlashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string ParentOfPath(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

/// Adds the names of the directories in `path`. Best effort: what is left out is synced later.
void AddFolders(const std::string& path, std::vector<std::string>& names) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end;
       !error && entry != end && names.size() < kMaxDurableCount; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) names.push_back(entry->path().filename().string());
  }
}

/// After the directories were created, kNotFound means that another process has removed what this
/// one was writing, and callers of a write must not read it as "there is no such object".
Result<void> WithoutNotFound(Result<void> written) {
  if (!written && written.error().code == ErrorCode::kNotFound) {
    written.error().code = ErrorCode::kUnavailable;
  }
  return written;
}

/// kConflict: `path` exists. kNotFound: another process has removed `temporary`.
Result<void> Link(std::string_view name, const std::string& temporary, const std::string& path) {
  CAIRN_TRY(PassPoint(name, "link", path));
  if (::link(temporary.c_str(), path.c_str()) == 0) return {};
  if (errno != EEXIST) return Fail(SystemError(errno, "cannot link", path));
  return Fail(Error{.code = ErrorCode::kConflict, .message = "the object exists", .file = path});
}

}  // namespace

/// An object that is written under its name. Ownership: `storage` outlives it.
class DirectoryStorage::Writer final : public ObjectWriter {
 public:
  Writer(DirectoryStorage& storage, std::string_view name, File file)
      : storage_(storage), name_(name), file_(std::move(file)) {}
  ~Writer() override {
    // A file that remains is removed with the other objects that no root reaches.
    if (!finished_) (void)Unlink(name_, file_.path());
  }

  Result<void> Append(std::span<const std::byte> bytes) override {
    return file_.Append(bytes, PointName(name_, "write").c_str());
  }
  Result<void> Finish() override {
    CAIRN_TRY(file_.Sync(PointName(name_, "sync").c_str()));
    CAIRN_TRY(storage_.FinishNames(name_));
    finished_ = true;
    return {};
  }

 private:
  DirectoryStorage& storage_;
  const std::string name_;
  File file_;
  bool finished_ = false;
};

DirectoryStorage::DirectoryStorage(std::string path)
    : root_(WithoutTrailingSlashes(std::move(path))) {}

Result<void> DirectoryStorage::Put(std::string_view name, std::span<const std::byte> bytes) {
  CAIRN_TRY(Replace(name, bytes, Durability::kSynced));
  return FinishNames(name);
}

Result<void> DirectoryStorage::PutVolatile(std::string_view name,
                                           std::span<const std::byte> bytes) {
  return Replace(name, bytes, Durability::kNone);
}

Result<void> DirectoryStorage::Replace(std::string_view name, std::span<const std::byte> bytes,
                                       Durability durability) {
  CAIRN_CHECK(IsObjectName(name));
  for (int attempt = 1;; ++attempt) {
    CAIRN_TRY_ASSIGN(const std::string temporary, WriteTemporary(name, bytes, durability));
    const Result<void> renamed = Rename(temporary, PathOf(name), PointName(name, "rename").c_str());
    if (renamed) return {};
    if (renamed.error().code == ErrorCode::kNotFound && attempt < kCreateAttempts) continue;
    (void)Unlink(name, temporary);  // the first error is the one to report
    return WithoutNotFound(renamed);
  }
}

Result<void> DirectoryStorage::PutIfAbsent(std::string_view name,
                                           std::span<const std::byte> bytes) {
  return LinkNew(name, bytes, Durability::kSynced);
}

Result<void> DirectoryStorage::PutIfAbsentVolatile(std::string_view name,
                                                   std::span<const std::byte> bytes) {
  return LinkNew(name, bytes, Durability::kNone);
}

Result<void> DirectoryStorage::LinkNew(std::string_view name, std::span<const std::byte> bytes,
                                       Durability durability) {
  CAIRN_CHECK(IsObjectName(name));
  for (int attempt = 1;; ++attempt) {
    CAIRN_TRY_ASSIGN(const std::string temporary, WriteTemporary(name, bytes, durability));
    Result<void> done = Link(name, temporary, PathOf(name));
    if (!done && done.error().code == ErrorCode::kNotFound && attempt < kCreateAttempts) continue;
    if (done && durability == Durability::kSynced) done = FinishNames(name);
    // The object exists or does not, whether or not the temporary name remains.
    (void)Unlink(name, temporary);
    return WithoutNotFound(std::move(done));
  }
}

Result<std::unique_ptr<ObjectWriter>> DirectoryStorage::Create(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  const std::string path = PathOf(name);
  File file;
  CAIRN_TRY(InDirectoryOf(name, Durability::kSynced, [&]() -> Result<void> {
    CAIRN_TRY(PassPoint(name, "create", path));
    CAIRN_TRY_ASSIGN(file, File::Create(path, /*direct=*/false));
    return {};
  }));
  return std::make_unique<Writer>(*this, name, std::move(file));
}

Result<void> DirectoryStorage::ReadRange(std::string_view name, uint64_t offset_bytes,
                                         std::span<std::byte> target) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY(SyncBeforeRead(name));
  CAIRN_TRY_ASSIGN(const File file, File::OpenRead(PathOf(name), /*direct=*/false, nullptr));
  return file.ReadAt(offset_bytes, target);
}

Result<std::vector<std::byte>> DirectoryStorage::Read(std::string_view name, uint64_t limit_bytes) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY(SyncBeforeRead(name));
  return ReadWholeFile(PathOf(name), limit_bytes, nullptr);
}

Result<uint64_t> DirectoryStorage::Size(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY(SyncBeforeRead(name));
  const std::string path = PathOf(name);
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return Fail(SystemError(errno, "cannot stat", path));
  return static_cast<uint64_t>(status.st_size);
}

Result<std::vector<std::string>> DirectoryStorage::List(std::string_view prefix) {
  CAIRN_CHECK(IsObjectPrefix(prefix));
  std::vector<std::string> names;
  std::vector<std::string> prefixes = {std::string(prefix)};
  while (!prefixes.empty()) {
    const std::string next = std::move(prefixes.back());
    prefixes.pop_back();
    CAIRN_TRY_ASSIGN(const DirectoryEntries entries, ReadEntries(PathOf(next), DirectoryLinks::kFollow));
    for (const std::string& file : entries.files) {
      if (IsObjectName(file)) names.push_back(next + file);
    }
    for (const std::string& directory : entries.directories) {
      if (IsObjectName(directory)) prefixes.push_back(fmt::format("{}{}/", next, directory));
    }
  }
  return names;
}

Result<void> DirectoryStorage::Remove(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY(Unlink(name, PathOf(name)));
  const std::string_view directory = DirectoryOf(name);
  if (directory.find('/') == std::string_view::npos) return {};
  const std::string path = PathOf(directory);
  CAIRN_TRY(PassPoint(name, "remove", path));
  if (::rmdir(path.c_str()) != 0 && errno != ENOTEMPTY && errno != EEXIST && errno != ENOENT) {
    return Fail(SystemError(errno, "cannot remove the directory", path));
  }
  return {};
}

Result<void> DirectoryStorage::RemoveLeftovers() {
  std::vector<std::string> prefixes = {""};
  while (!prefixes.empty()) {
    const std::string prefix = std::move(prefixes.back());
    prefixes.pop_back();
    CAIRN_TRY_ASSIGN(const DirectoryEntries entries, ReadEntries(PathOf(prefix), DirectoryLinks::kFollow));
    for (const std::string& file : entries.files) {
      const std::string name = prefix + file;
      if (IsTemporary(file)) CAIRN_TRY(Unlink(prefix.empty() ? "root" : prefix, PathOf(name)));
    }
    for (const std::string& directory : entries.directories) {
      if (IsObjectName(directory)) prefixes.push_back(fmt::format("{}{}/", prefix, directory));
    }
  }
  return {};
}

void DirectoryStorage::AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) {
  CAIRN_CHECK(IsObjectPrefix(prefix));
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // If the directory does not exist, its own name is the first change.
  std::string_view directory = DirectoryOf(prefix);
  while (!AwaitName(PathOf(directory), deadline)) {
    if (directory.empty()) return std::this_thread::sleep_until(deadline);
    directory = DirectoryOf(directory);
  }
}

std::string DirectoryStorage::PathOf(std::string_view name) const {
  return name.empty() ? root_ : ObjectPath(root_, name);
}

Result<void> DirectoryStorage::PrepareFile(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  return MakeDirectory(DirectoryOf(name), name, Durability::kSynced);
}

Result<void> DirectoryStorage::SyncNames(std::string_view prefix) {
  CAIRN_CHECK(!prefix.empty() && IsObjectPrefix(prefix));
  return SyncDirectoryOf(prefix);
}

Result<std::string> DirectoryStorage::WriteTemporary(std::string_view name,
                                                     std::span<const std::byte> bytes,
                                                     Durability durability) {
  CAIRN_TRY_ASSIGN(const uint64_t number, RandomNumber());
  const std::string_view directory = DirectoryOf(name);
  const std::string path =
      fmt::format("{}/.{:016x}{}", PathOf(directory), number, kTemporarySuffix);
  File file;
  CAIRN_TRY(InDirectoryOf(name, durability, [&]() -> Result<void> {
    CAIRN_TRY(PassPoint(name, "create", path));
    CAIRN_TRY_ASSIGN(file, File::Create(path, /*direct=*/false));
    return {};
  }));
  Result<void> written = file.Append(bytes, PointName(name, "write").c_str());
  if (written && durability == Durability::kSynced) {
    written = file.Sync(PointName(name, "sync").c_str());
  }
  if (!written) {
    (void)Unlink(name, path);  // the first error is the one to report
    return Fail(std::move(written).error());
  }
  return path;
}

Result<void> DirectoryStorage::InDirectoryOf(std::string_view name, Durability durability,
                                             const std::function<Result<void>()>& create) {
  for (int attempt = 1;; ++attempt) {
    Result<void> created = MakeDirectory(DirectoryOf(name), name, durability);
    if (created) created = create();
    if (created || created.error().code != ErrorCode::kNotFound || attempt == kCreateAttempts) {
      return created;
    }
    const MutexLock lock(mutex_);
    durable_.clear();
  }
}

Result<void> DirectoryStorage::MakeDirectory(std::string_view directory, std::string_view name,
                                             Durability durability) {
  {
    const MutexLock lock(mutex_);
    if (durable_.contains(directory)) return {};
  }
  const bool is_root = directory.empty();
  if (!is_root) CAIRN_TRY(MakeDirectory(DirectoryOf(directory), name, durability));
  const std::string path = PathOf(directory);
  CAIRN_TRY(PassPoint(name, "create", path));
  const bool created = ::mkdir(path.c_str(), 0755) == 0;
  if (!created && errno != EEXIST) {
    return Fail(SystemError(errno, "cannot create the directory", path));
  }
  // A directory that exists may have been created by another process that has not synced its name
  // yet. Whoever created the root before this object was opened is responsible for its name; the
  // directory that contains it may not even be readable.
  if (durability == Durability::kNone && !(is_root && created)) return {};
  std::vector<std::string> durable = {std::string(directory)};
  if (created || !is_root) {
    const std::string parent = is_root ? ParentOfPath(path) : PathOf(DirectoryOf(directory));
    // The sync covers the names of all folders of the store that exist before it.
    if (!is_root && DirectoryOf(directory).empty()) AddFolders(parent, durable);
    CAIRN_TRY(SyncDirectory(parent, PointName(name, "directory_sync").c_str()));
  }
  const MutexLock lock(mutex_);
  if (durable_.size() >= kMaxDurableCount) durable_.clear();
  durable_.insert(durable.begin(), durable.end());
  return {};
}

Result<void> DirectoryStorage::FinishNames(std::string_view name) {
  const std::string path = PathOf(name);
  const Result<void> linked = PassPoint(name, "linked", path);
  if (!linked) {
    RememberUnsynced(DirectoryOf(name));
    return linked;
  }
  CAIRN_TRY(SyncDirectoryOf(name));
  return PassPoint(name, "done", path);
}

Result<void> DirectoryStorage::SyncDirectoryOf(std::string_view name) {
  const std::string_view directory = DirectoryOf(name);
  Result<void> synced = SyncDirectory(PathOf(directory), PointName(name, "directory_sync").c_str());
  if (!synced) RememberUnsynced(directory);
  return WithoutNotFound(std::move(synced));
}

void DirectoryStorage::RememberUnsynced(std::string_view directory) {
  const MutexLock lock(mutex_);
  ++unsynced_[std::string(directory)];
  has_unsynced_ = true;
}

Result<void> DirectoryStorage::SyncBeforeRead(std::string_view name) {
  if (!has_unsynced_) return {};
  const std::string_view directory = DirectoryOf(name);
  uint64_t failure_count = 0;
  {
    const MutexLock lock(mutex_);
    const auto unsynced = unsynced_.find(directory);
    if (unsynced == unsynced_.end()) return {};
    failure_count = unsynced->second;
  }
  CAIRN_TRY(SyncDirectoryOf(name));
  const MutexLock lock(mutex_);
  const auto unsynced = unsynced_.find(directory);
  // A sync that failed in the meantime may concern a name that the one above did not include.
  if (unsynced != unsynced_.end() && unsynced->second == failure_count) unsynced_.erase(unsynced);
  has_unsynced_ = !unsynced_.empty();
  return {};
}

}  // namespace cairn::kv::internal
