// Objects as files: durable names, ranges, listings.

#include "kv/storage/files/internal/directory_storage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "kv/io/internal/fault_point.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr size_t kTemporaryDigits = 16;
// Another process may remove an empty directory before a file is created in it, and a writer that
// takes the store removes temporary files, including the files of others who try to take it.
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

Result<void> Pass(std::string_view name, std::string_view operation, std::string_view path) {
  return PassPoint(PointName(name, operation).c_str(), fmt::format("cannot {}", operation), path);
}

/// A folder of the storage may be a link, but nothing below it.
DirectoryLinks LinksOf(std::string_view directory) {
  if (directory.empty()) return DirectoryLinks::kFollow;
  return directory.find('/') == std::string_view::npos ? DirectoryLinks::kFollowItself
                                                       : DirectoryLinks::kIgnore;
}

std::string WithoutTrailingSlashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

Result<void> Unlink(std::string_view name, const FilePlace& place) {
  CAIRN_TRY(Pass(name, "remove", place.path));
  return RemoveFile(place);
}

/// After the directories were created, kNotFound means that another process has removed what this
/// one was writing, and callers of a write must not read it as "there is no such object".
Result<void> WithoutNotFound(Result<void> written) {
  if (!written && written.error().code == ErrorCode::kNotFound) {
    written.error().code = ErrorCode::kUnavailable;
  }
  return written;
}

/// kNotFound: another process has removed `temporary`.
Result<void> Rename(std::string_view name, const FilePlace& temporary, const FilePlace& place) {
  const std::string what = fmt::format("cannot rename to {}", place.path);
  CAIRN_TRY(PassPoint(PointName(name, "rename").c_str(), what, temporary.path));
  if (::renameat(temporary.directory, temporary.name.c_str(), place.directory,
                 place.name.c_str()) == 0) {
    return {};
  }
  return Fail(SystemError(errno, what, temporary.path));
}

/// kConflict: `path` exists. kNotFound: another process has removed `temporary`.
Result<void> Link(std::string_view name, const FilePlace& temporary, const FilePlace& place) {
  CAIRN_TRY(Pass(name, "link", place.path));
  if (::linkat(temporary.directory, temporary.name.c_str(), place.directory, place.name.c_str(),
               0) == 0) {
    return {};
  }
  if (errno != EEXIST) return Fail(SystemError(errno, "cannot link", place.path));
  return Fail(ErrorCode::kConflict, "the object exists", place.path);
}

}  // namespace

bool IsTemporaryName(std::string_view file) {
  return file.size() == 1 + kTemporaryDigits + kTemporarySuffix.size() && file.starts_with('.') &&
         file.ends_with(kTemporarySuffix) &&
         IsHexDigits(file.substr(1, kTemporaryDigits), kTemporaryDigits);
}

Result<void> CheckNamesNoHome(const std::string& path) {
  if (!path.starts_with('~')) return {};
  return Fail(
      ErrorCode::kInvalidArgument,
      fmt::format("only a shell replaces '~' by the home directory: write that directory, or "
                  "\"./{}\" for a directory of this name",
                  path),
      path);
}

/// An object that is written under its name. Ownership: `storage` outlives it.
class DirectoryStorage::Writer final : public ObjectWriter {
 public:
  Writer(DirectoryStorage& storage, std::string_view name, FilePlace place, File file)
      : storage_(storage), name_(name), place_(std::move(place)), file_(std::move(file)) {}
  ~Writer() override {
    // A file that remains is removed with the other objects that no root reaches.
    CleanUp([&] {
      if (!finished_) (void)Unlink(name_, place_);
    });
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
  const FilePlace place_;
  File file_;
  bool finished_ = false;
};

DirectoryStorage::DirectoryStorage(std::string path)
    : root_(AbsolutePath(WithoutTrailingSlashes(std::move(path)))) {}

Result<int> DirectoryStorage::Directory() {
  if (const int directory = directory_; directory >= 0) return directory;
  const MutexLock lock(mutex_);
  if (held_.is_open()) return held_.get();
  // O_PATH requires no permission to read the directory.
  FileDescriptor opened(
      RetryInterrupted([&] { return ::open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); }));
  if (!opened.is_open()) return Fail(SystemError(errno, "cannot open the directory", root_));
  held_ = std::move(opened);
  directory_ = held_.get();
  return held_.get();
}

std::optional<Error> DirectoryStorage::WasRemoved() const {
  if (directory_ < 0) return std::nullopt;
  struct stat held;
  struct stat found;
  const bool is_known = ::fstat(directory_, &held) == 0;
  if (is_known ? held.st_nlink > 0 : errno != ESTALE) return std::nullopt;
  // Some file systems count no links of directories.
  if (is_known && ::stat(root_.c_str(), &found) == 0 && found.st_dev == held.st_dev &&
      found.st_ino == held.st_ino) {
    return std::nullopt;
  }
  return Error{.code = ErrorCode::kFailedPrecondition,
               .message =
                   "the directory of the store was removed since it was opened; open it "
                   "again",
               .file = root_};
}

Result<void> DirectoryStorage::PutFile(std::string_view name, std::span<const std::byte> bytes,
                                       Existing existing, Durability durability) {
  CAIRN_CHECK(IsObjectName(name));
  const bool replaces = existing == Existing::kReplace;
  for (int attempt = 1;; ++attempt) {
    CAIRN_TRY_ASSIGN(const FilePlace temporary, WriteTemporary(name, bytes, durability));
    CAIRN_TRY_ASSIGN(const FilePlace place, PlaceOf(name));
    const Result<void> named =
        replaces ? Rename(name, temporary, place) : Link(name, temporary, place);
    if (!named && named.error().code == ErrorCode::kNotFound && attempt < kCreateAttempts) continue;
    Result<void> done = named;
    if (done && durability == Durability::kSynced) done = FinishNames(name);
    // The object exists or does not, whether or not the temporary name remains.
    if (!named || !replaces) (void)Unlink(name, temporary);
    return WithoutNotFound(std::move(done));
  }
}

Result<void> DirectoryStorage::Overwrite(std::string_view name, std::span<const std::byte> bytes) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY_ASSIGN(const FilePlace place, PlaceOf(name));
  constexpr int kFlags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const FileDescriptor file(
      RetryInterrupted([&] { return ::openat(place.directory, place.name.c_str(), kFlags); }));
  struct stat status;
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_nlink > 1 || status.st_size != static_cast<off_t>(bytes.size())) {
    return PutVolatile(name, bytes);
  }
  CAIRN_TRY(Pass(name, "write", place.path));
  const ssize_t written =
      RetryInterrupted([&] { return ::pwrite(file.get(), bytes.data(), bytes.size(), 0); });
  if (written == static_cast<ssize_t>(bytes.size())) return {};
  return Fail(SystemError(written < 0 ? errno : EIO, "cannot write", place.path));
}

Result<std::unique_ptr<ObjectWriter>> DirectoryStorage::Create(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY_ASSIGN(CreatedFile created, CreateFile(name, std::string(name), Durability::kSynced));
  return std::make_unique<Writer>(*this, name, std::move(created.place), std::move(created.file));
}

Result<void> DirectoryStorage::ReadRange(std::string_view name, uint64_t offset_bytes,
                                         std::span<std::byte> target) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY(SyncBeforeRead(name));
  CAIRN_TRY_ASSIGN(const FilePlace place, PlaceOf(name));
  CAIRN_TRY_ASSIGN(const File file, File::OpenRead(place, /*direct=*/false, nullptr));
  return file.ReadAt(offset_bytes, target);
}

Result<std::vector<std::byte>> DirectoryStorage::Read(std::string_view name, uint64_t limit_bytes) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY(SyncBeforeRead(name));
  CAIRN_TRY_ASSIGN(const FilePlace place, PlaceOf(name));
  return ReadWholeFile(place, limit_bytes);
}

Result<uint64_t> DirectoryStorage::Size(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  CAIRN_TRY(SyncBeforeRead(name));
  CAIRN_TRY_ASSIGN(const FilePlace place, PlaceOf(name));
  struct stat status;
  if (::fstatat(place.directory, place.name.c_str(), &status, 0) != 0) {
    return Fail(SystemError(errno, "cannot stat", place.path));
  }
  return static_cast<uint64_t>(status.st_size);
}

Result<std::vector<std::string>> DirectoryStorage::List(std::string_view prefix) {
  CAIRN_CHECK(IsObjectPrefix(prefix));
  std::vector<std::string> names;
  std::vector<std::string> prefixes = {std::string(prefix)};
  while (!prefixes.empty()) {
    const std::string next = std::move(prefixes.back());
    prefixes.pop_back();
    const std::string_view directory = DirectoryOf(next);
    const auto place = PlaceOf(directory);
    if (!place && place.error().code == ErrorCode::kNotFound) return names;
    CAIRN_TRY(place);
    CAIRN_TRY_ASSIGN(const DirectoryEntries entries, ReadEntries(*place, LinksOf(directory)));
    for (const std::string& file : entries.files) {
      if (IsObjectName(file)) names.push_back(next + file);
    }
    for (const std::string& folder : entries.directories) {
      if (IsObjectName(folder)) prefixes.push_back(fmt::format("{}{}/", next, folder));
    }
  }
  // An empty list would mean that the store is empty.
  if (names.empty()) {
    if (auto removed = WasRemoved()) return Fail(*std::move(removed));
  }
  return names;
}

Result<void> DirectoryStorage::Remove(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  const auto place = PlaceOf(name);
  if (!place && place.error().code == ErrorCode::kNotFound) return {};
  CAIRN_TRY(place);
  CAIRN_TRY(Unlink(name, *place));
  const std::string_view directory = DirectoryOf(name);
  if (directory.find('/') == std::string_view::npos) return {};
  CAIRN_TRY_ASSIGN(const FilePlace folder, PlaceOf(directory));
  CAIRN_TRY(Pass(name, "remove", folder.path));
  if (::unlinkat(folder.directory, folder.name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOTEMPTY &&
      errno != EEXIST && errno != ENOENT) {
    return Fail(SystemError(errno, "cannot remove the directory", folder.path));
  }
  return {};
}

Result<void> DirectoryStorage::RemoveLeftovers(uint32_t) {
  // Names of temporary files contain no epoch. A put whose file disappears is repeated.
  const auto directory = Directory();
  if (!directory && directory.error().code == ErrorCode::kNotFound) return {};
  CAIRN_TRY(RemoveTemporaries(""));
  for (const std::string_view folder : kStoreFolders) {
    CAIRN_TRY(RemoveTemporaries(std::string(folder)));
  }
  const std::string_view pending = DirectoryOf(kPendingFolder);
  CAIRN_TRY_ASSIGN(const FilePlace place, PlaceOf(pending));
  CAIRN_TRY_ASSIGN(const DirectoryEntries entries, ReadEntries(place, LinksOf(pending)));
  for (const std::string& attempt : entries.directories) {
    if (!IsAttemptName(attempt)) continue;
    CAIRN_TRY(RemoveTemporaries(fmt::format("{}{}/", kPendingFolder, attempt)));
  }
  return {};
}

Result<void> DirectoryStorage::RemoveTemporaries(const std::string& prefix) {
  const std::string_view directory = DirectoryOf(prefix);
  CAIRN_TRY_ASSIGN(const FilePlace place, PlaceOf(directory));
  CAIRN_TRY_ASSIGN(const DirectoryEntries entries, ReadEntries(place, LinksOf(directory)));
  for (const std::string& file : entries.files) {
    if (!IsTemporaryName(file)) continue;
    CAIRN_TRY_ASSIGN(const FilePlace found, PlaceOf(prefix + file));
    struct stat status;
    if (::fstatat(found.directory, found.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(status.st_mode)) {
      CAIRN_TRY(Unlink(prefix.empty() ? "root" : prefix, found));
    }
  }
  return {};
}

void DirectoryStorage::AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) {
  CAIRN_CHECK(IsObjectPrefix(prefix));
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // If the directory does not exist, its own name is the first change.
  std::string_view directory = DirectoryOf(prefix);
  while (!AwaitName(WatchedPath(directory), deadline)) {
    if (directory.empty()) return std::this_thread::sleep_until(deadline);
    directory = DirectoryOf(directory);
  }
}

std::string DirectoryStorage::PathOf(std::string_view name) const {
  return name.empty() ? root_ : ObjectPath(root_, name);
}

Result<FilePlace> DirectoryStorage::PlaceOf(std::string_view name) {
  auto directory = Directory();
  if (directory) return FilePlace(*directory, name.empty() ? "." : std::string(name), PathOf(name));
  directory.error().file = PathOf(name);
  return Fail(std::move(directory).error());
}

std::string DirectoryStorage::WatchedPath(std::string_view directory) {
  const auto held = Directory();
  return held ? fmt::format("/proc/self/fd/{}/{}", *held, directory) : PathOf(directory);
}

Result<void> DirectoryStorage::PrepareFile(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  return MakeDirectory(DirectoryOf(name), name, Durability::kSynced);
}

Result<void> DirectoryStorage::SyncNames(std::string_view prefix) {
  CAIRN_CHECK(!prefix.empty() && IsObjectPrefix(prefix));
  return SyncDirectoryOf(prefix);
}

Result<FilePlace> DirectoryStorage::WriteTemporary(std::string_view name,
                                                   std::span<const std::byte> bytes,
                                                   Durability durability) {
  const std::string_view prefix = name.substr(0, name.rfind('/') + 1);
  const std::string file = fmt::format("{}.{:016x}{}", prefix, NewUniqueNumber(), kTemporarySuffix);
  CAIRN_TRY_ASSIGN(CreatedFile created, CreateFile(name, file, durability));
  Result<void> written = created.file.Append(bytes, PointName(name, "write").c_str());
  if (written && durability == Durability::kSynced) {
    written = created.file.Sync(PointName(name, "sync").c_str());
  }
  if (!written) {
    (void)Unlink(name, created.place);  // the first error is the one to report
    return Fail(std::move(written).error());
  }
  return std::move(created.place);
}

Result<DirectoryStorage::CreatedFile> DirectoryStorage::CreateFile(std::string_view name,
                                                                   const std::string& file_name,
                                                                   Durability durability) {
  const auto create = [&]() -> Result<CreatedFile> {
    CAIRN_TRY(MakeDirectory(DirectoryOf(name), name, durability));
    CAIRN_TRY(Pass(name, "create", PathOf(file_name)));
    CAIRN_TRY_ASSIGN(FilePlace place, PlaceOf(file_name));
    CAIRN_TRY_ASSIGN(File file, File::Create(place, /*direct=*/false));
    return CreatedFile{.place = std::move(place), .file = std::move(file)};
  };
  for (int attempt = 1;; ++attempt) {
    auto created = create();
    if (created || created.error().code != ErrorCode::kNotFound || attempt == kCreateAttempts) {
      return created;
    }
    if (auto removed = WasRemoved()) return Fail(*std::move(removed));
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
  CAIRN_TRY(Pass(name, "create", PathOf(directory)));
  bool created = false;
  if (!is_root || directory_ < 0) {
    FilePlace place(root_);
    if (!is_root) {
      CAIRN_TRY_ASSIGN(place, PlaceOf(directory));
    }
    created = ::mkdirat(place.directory, place.name.c_str(), 0777) == 0;
    if (!created && errno != EEXIST) {
      return Fail(SystemError(errno, "cannot create the directory", place.path));
    }
    CAIRN_TRY(Directory());
  }
  // A directory that exists may have been created by another process that has not synced its name
  // yet. Whoever created the root before this object was opened is responsible for its name; the
  // directory that contains it may not even be readable.
  if (durability == Durability::kNone && !(is_root && created)) return {};
  std::vector<std::string> durable = {std::string(directory)};
  if (created || !is_root) {
    FilePlace parent(ParentOfPath(root_));
    if (!is_root) {
      CAIRN_TRY_ASSIGN(parent, PlaceOf(DirectoryOf(directory)));
    }
    // The sync covers the names of all folders of the store that exist before it. Best effort: what
    // is left out is synced later.
    if (!is_root && DirectoryOf(directory).empty()) {
      auto entries = ReadEntries(parent, DirectoryLinks::kFollow).value_or(DirectoryEntries());
      for (std::string& folder : entries.directories) {
        if (durable.size() < kMaxDurableCount) durable.push_back(std::move(folder));
      }
    }
    CAIRN_TRY(SyncDirectory(parent, PointName(name, "directory_sync").c_str()));
  }
  const MutexLock lock(mutex_);
  if (durable_.size() >= kMaxDurableCount) durable_.clear();
  durable_.insert(durable.begin(), durable.end());
  return {};
}

Result<void> DirectoryStorage::FinishNames(std::string_view name) {
  const std::string path = PathOf(name);
  const Result<void> linked = Pass(name, "linked", path);
  if (!linked) {
    RememberUnsynced(DirectoryOf(name));
    return linked;
  }
  CAIRN_TRY(SyncDirectoryOf(name));
  return Pass(name, "done", path);
}

Result<void> DirectoryStorage::SyncDirectoryOf(std::string_view name) {
  const std::string_view directory = DirectoryOf(name);
  CAIRN_TRY_ASSIGN(const FilePlace place, PlaceOf(directory));
  Result<void> synced = SyncDirectory(place, PointName(name, "directory_sync").c_str());
  if (!synced) RememberUnsynced(directory);
  return WithoutNotFound(std::move(synced));
}

void DirectoryStorage::RememberUnsynced(std::string_view directory) {
  const MutexLock lock(mutex_);
  unsynced_.emplace(directory);
  has_unsynced_ = true;
}

Result<void> DirectoryStorage::SyncBeforeRead(std::string_view name) {
  if (!has_unsynced_) return {};
  const std::string_view directory = DirectoryOf(name);
  CAIRN_TRY_ASSIGN(const FilePlace place, PlaceOf(directory));
  // Held during the sync, so that a name whose sync fails in the meantime is remembered after it.
  const MutexLock lock(mutex_);
  const auto unsynced = unsynced_.find(directory);
  if (unsynced == unsynced_.end()) return {};
  CAIRN_TRY(WithoutNotFound(SyncDirectory(place, PointName(name, "directory_sync").c_str())));
  unsynced_.erase(unsynced);
  has_unsynced_ = !unsynced_.empty();
  return {};
}

}  // namespace cairn::kv::internal
