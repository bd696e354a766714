// Granules, their digests, the files that contain them, and the eviction of files.

#include "kv/storage/cache/internal/cache_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "kv/base/digest.h"
#include "kv/io/internal/block_io.h"
#include "kv/io/internal/file.h"
#include "kv/storage/files/internal/directory_entries.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr const char* kMarkName = "CAIRN-CACHE";
constexpr std::string_view kMarkText =
    "This folder is a reader cache of Cairn, which removes files from it. It may be removed.\n";
constexpr const char* kLockName = ".lock";
constexpr const char* kNewestRootName = "newest-root";
// The suffix that makes the path of the digests from the path of the bytes.
constexpr std::string_view kDigestSuffix = ".xxh3";
constexpr uint64_t kGranuleBytes = 4096;
constexpr uint64_t kEntryBytes = 16;
constexpr size_t kStorageDigits = 16;
constexpr uint64_t kMaxRootNameBytes = 256;
// Fractions of the limit: what a process adds before it looks, what remains free for the processes
// that have not looked yet, and what an eviction frees.
constexpr uint64_t kAddedFraction = 64;
constexpr uint64_t kFreeFraction = 8;
constexpr uint64_t kFreedFraction = 4;
constexpr std::chrono::seconds kPauseAfterError{10};
constexpr mode_t kFolderMode = 0700;

Error NotOurs(std::string what, const std::string& path) {
  return Error{.code = ErrorCode::kFailedPrecondition,
               .message = std::move(what) + "; remove it, or name another directory in CAIRN_CACHE",
               .file = path};
}

/// Opens a folder that others can neither have created nor change. Creates it if it is absent.
Result<FileDescriptor> OpenFolder(const FilePlace& place) {
  const bool created = ::mkdirat(place.directory, place.name.c_str(), kFolderMode) == 0;
  if (!created && errno != EEXIST) {
    return Fail(SystemError(errno, "cannot create the folder of the reader cache", place.path));
  }
  FileDescriptor folder(::openat(place.directory, place.name.c_str(),
                                 O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.is_open() && (errno == ENOTDIR || errno == ELOOP)) {
    return Fail(NotOurs("the reader cache needs this name for a folder", place.path));
  }
  struct stat status;
  if (!folder.is_open() || ::fstat(folder.get(), &status) != 0) {
    return Fail(SystemError(errno, "cannot open the folder of the reader cache", place.path));
  }
  if (status.st_uid != ::geteuid()) {
    return Fail(NotOurs("the folder of the reader cache belongs to another user", place.path));
  }
  // The mask of the process may have removed more than the mode of the call allows.
  if (created && ::fchmod(folder.get(), kFolderMode) == 0) return folder;
  if ((status.st_mode & 0777) == kFolderMode) return folder;
  return Fail(NotOurs(fmt::format("the folder of the reader cache has mode {:04o} and not {:04o}",
                                  status.st_mode & 0777, kFolderMode),
                      place.path));
}

bool HasMark(int folder) {
  struct stat status;
  return ::fstatat(folder, kMarkName, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode);
}

/// Checks that a folder has the mark. A folder without it gets it if all its files have names that
/// the cache gives: it is new, or a program that removes old files has removed the mark.
Result<void> CheckMark(int folder, const std::string& path) {
  if (HasMark(folder)) return {};
  CAIRN_TRY_ASSIGN(const DirectoryEntries entries,
                   ReadEntries({folder, ".", path}, DirectoryLinks::kIgnore));
  const bool is_ours = std::ranges::all_of(entries.files,
                                           [](const std::string& name) {
                                             return name == kLockName || name == kMarkName;
                                           }) &&
                       std::ranges::all_of(entries.directories, [](const std::string& name) {
                         return IsHexDigits(name, kStorageDigits);
                       });
  if (!is_ours) {
    return Fail(NotOurs("this folder has the name of a reader cache, but other files", path));
  }
  const FileDescriptor mark(
      ::openat(folder, kMarkName, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  // Its existence is the mark. The text is for people.
  if (mark.is_open()) (void)!::write(mark.get(), kMarkText.data(), kMarkText.size());
  if (HasMark(folder)) return {};  // also if another process has just created it
  return Fail(SystemError(errno, "cannot create a file of the reader cache", path));
}

/// Returns the name of the file with the bytes of an object.
std::string FlatName(std::string_view name) {
  std::string flat(name);
  std::ranges::replace(flat, '/', '-');
  return flat;
}

/// Returns whether FlatName returns `flat` for an object that is cached.
bool IsFlatName(std::string flat) {
  const size_t dash = flat.find('-');
  if (dash == std::string::npos) return false;
  flat[dash] = '/';
  return ParseObjectName(flat).has_value();
}

/// An object on disk.
struct StoredObject {
  std::string storage;  // the folder
  std::string flat_name;
  uint64_t allocated_bytes = 0;
  int64_t used_ns = 0;
};

FileDescriptor OpenStorageFolder(int cache, const std::string& storage) {
  FileDescriptor folder(
      ::openat(cache, storage.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status;
  if (folder.is_open() && (::fstat(folder.get(), &status) != 0 || status.st_uid != ::geteuid())) {
    folder.Close();
  }
  return folder;
}

/// Adds the objects in the folder of one storage.
void FindObjects(int cache, const std::string& storage, std::vector<StoredObject>& objects) {
  const FileDescriptor folder = OpenStorageFolder(cache, storage);
  if (!folder.is_open()) return;
  const auto entries = ReadEntries({folder.get(), ".", storage}, DirectoryLinks::kIgnore);
  if (!entries) return;
  std::map<std::string, StoredObject> by_name;
  for (const std::string& name : entries->files) {
    const bool is_digests = name.ends_with(kDigestSuffix);
    std::string flat = is_digests ? name.substr(0, name.size() - kDigestSuffix.size()) : name;
    struct stat status;
    if (!IsFlatName(flat) ||
        ::fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode)) {
      continue;
    }
    StoredObject& object = by_name[std::move(flat)];
    object.allocated_bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    // Reads touch the digests. Without those, the bytes are of no use.
    if (is_digests) {
      object.used_ns = status.st_mtim.tv_sec * 1'000'000'000LL + status.st_mtim.tv_nsec;
    }
  }
  for (auto& [flat, object] : by_name) {
    object.storage = storage;
    object.flat_name = flat;
    objects.push_back(std::move(object));
  }
}

/// Removes both files of an object. The digests first, so that bytes without digests remain after a
/// kill. Other processes may have the files open, so the space of the bytes is freed before their
/// name is removed.
void RemoveFiles(int folder, const std::string& flat_name) {
  for (const std::string& name : {flat_name + std::string(kDigestSuffix), flat_name}) {
    const FileDescriptor file(
        ::openat(folder, name.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status;
    if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    // With a second name, the bytes belong to somebody else too.
    if (status.st_nlink == 1) (void)!::ftruncate(file.get(), 0);
    (void)::unlinkat(folder, name.c_str(), 0);
  }
}

/// The part of a granule that a range of an object covers, relative to the granule.
struct Part {
  uint64_t granule = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t at = 0;  // where its first byte is, relative to the range
};

Part PartOf(uint64_t granule, uint64_t offset_bytes, uint64_t length_bytes) {
  const uint64_t start = granule * kGranuleBytes;
  const uint64_t begin = std::max(start, offset_bytes);
  const uint64_t end = std::min(start + kGranuleBytes, offset_bytes + length_bytes);
  return {
      .granule = granule, .begin = begin - start, .end = end - start, .at = begin - offset_bytes};
}

/// Returns whether all of `target` was read.
bool ReadFull(int fd, uint64_t offset_bytes, std::span<std::byte> target) {
  return TransferNow({.fd = fd,
                      .data = target.data(),
                      .length_bytes = target.size(),
                      .offset_bytes = offset_bytes})
             .done_bytes == target.size();
}

Result<void> WriteFull(int fd, uint64_t offset_bytes, std::span<const std::byte> bytes) {
  auto* const data = const_cast<std::byte*>(bytes.data());  // only read
  const IoCompletion written = TransferNow({.fd = fd,
                                            .write = true,
                                            .data = data,
                                            .length_bytes = bytes.size(),
                                            .offset_bytes = offset_bytes});
  if (written.done_bytes == bytes.size()) return {};
  const int error_number = written.error_number != 0 ? written.error_number : EIO;
  return Fail(SystemError(error_number, "cannot write to the cache"));
}

uint64_t EntryOffset(uint64_t granule) { return (granule + 1) * kEntryBytes; }

Result<FileDescriptor> OpenFile(const FilePlace& place, std::string_view suffix, bool create) {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
  FileDescriptor file(
      ::openat(place.directory, fmt::format("{}{}", place.name, suffix).c_str(), flags, 0600));
  const std::string path = fmt::format("{}{}", place.path, suffix);
  struct stat status;
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    return Fail(SystemError(errno, "cannot open a file of the cache", path));
  }
  if (S_ISREG(status.st_mode) && status.st_nlink <= 1) return file;
  return Fail(ErrorCode::kFailedPrecondition,
              "this is not a file of the cache, or it has another name too", path);
}

}  // namespace

/// One object in the cache. Ownership: owns both descriptors. Threads: all members may run on many
/// threads at once, and in many processes.
class CacheDirectory::Object {
 public:
  /// Opens the files, the bytes at `place`; with `create`, creates what is absent. `name` is the
  /// name of the object; digests of another object do not match. Records that it was used, at most
  /// once per second. kNotFound: one of the files is absent.
  static Result<Object> Open(const FilePlace& place, std::string_view name, bool create) {
    CAIRN_TRY_ASSIGN(FileDescriptor bytes, OpenFile(place, "", create));
    CAIRN_TRY_ASSIGN(FileDescriptor digests, OpenFile(place, kDigestSuffix, create));
    struct stat status;
    // Best effort: without it, the object may be evicted too early.
    if (::fstat(digests.get(), &status) == 0 && status.st_mtime != std::time(nullptr)) {
      (void)::futimens(digests.get(), nullptr);
    }
    return Object(std::move(bytes), std::move(digests), Checksum64(AsBytes(name)));
  }

  /// Fills `target` from `offset_bytes` on if all of it is in the cache and intact. Otherwise
  /// returns false, and the contents of `target` are unspecified.
  bool Read(uint64_t offset_bytes, std::span<std::byte> target) const {
    if (target.empty()) return false;
    const uint64_t first = offset_bytes / kGranuleBytes;
    const uint64_t last = (offset_bytes + target.size() - 1) / kGranuleBytes;
    std::vector<Entry> entries(last - first + 1);
    if (!ReadFull(digests_.get(), EntryOffset(first), std::as_writable_bytes(std::span(entries)))) {
      return false;
    }
    for (uint64_t i = 0; i < entries.size(); ++i) {
      const Part part = PartOf(first + i, offset_bytes, target.size());
      if (entries[i].digest == 0 || part.begin < entries[i].begin || part.end > entries[i].end) {
        return false;
      }
    }
    if (!ReadFull(bytes_.get(), offset_bytes, target)) return false;
    std::array<std::byte, kGranuleBytes> scratch;
    for (uint64_t i = 0; i < entries.size(); ++i) {
      const Entry& entry = entries[i];
      const Part part = PartOf(first + i, offset_bytes, target.size());
      const auto wanted = target.subspan(part.at, part.end - part.begin);
      if (entry.begin == part.begin && entry.end == part.end) {
        if (DigestOf(part.granule, part.begin, wanted) != entry.digest) return false;
        continue;
      }
      // The digest covers more than what is wanted: return the bytes that it was computed over.
      if (!ReadVerified(part.granule, entry, scratch)) return false;
      std::ranges::copy(std::span(scratch).subspan(part.begin, wanted.size()), wanted.begin());
    }
    return true;
  }

  /// Adds bytes of the object. kResourceExhausted, kUnavailable: they cannot be written; nothing is
  /// lost that was there before, unless its digest does not match any more.
  Result<void> Write(uint64_t offset_bytes, std::span<const std::byte> bytes) {
    if (bytes.empty()) return {};
    CAIRN_TRY(WriteFull(bytes_.get(), offset_bytes, bytes));
    const uint64_t first = offset_bytes / kGranuleBytes;
    const uint64_t last = (offset_bytes + bytes.size() - 1) / kGranuleBytes;
    std::vector<Entry> entries(last - first + 1);
    for (uint64_t i = 0; i < entries.size(); ++i) {
      const Part part = PartOf(first + i, offset_bytes, bytes.size());
      entries[i] = Join(part.granule, part.begin, bytes.subspan(part.at, part.end - part.begin));
    }
    return WriteFull(digests_.get(), EntryOffset(first), std::as_bytes(std::span(entries)));
  }

  /// Returns the length of the object if SetSize has recorded it.
  std::optional<uint64_t> Size() const {
    std::array<uint64_t, 2> entry;
    if (!ReadFull(digests_.get(), 0, std::as_writable_bytes(std::span(entry)))) return std::nullopt;
    const std::array<uint64_t, 2> covered{seed_, entry[0]};
    if (Checksum64(std::as_bytes(std::span(covered))) != entry[1]) return std::nullopt;
    return entry[0];
  }

  Result<void> SetSize(uint64_t size_bytes) {
    const std::array<uint64_t, 2> covered{seed_, size_bytes};
    const std::array<uint64_t, 2> entry{size_bytes, Checksum64(std::as_bytes(std::span(covered)))};
    return WriteFull(digests_.get(), 0, std::as_bytes(std::span(entry)));
  }

 private:
  struct Entry {
    uint64_t digest = 0;
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  // Entries are in memory as they are in the file only if this holds.
  static_assert(sizeof(Entry) == kEntryBytes && std::endian::native == std::endian::little);

  Object(FileDescriptor bytes, FileDescriptor digests, uint64_t seed)
      : bytes_(std::move(bytes)), digests_(std::move(digests)), seed_(seed) {}

  uint64_t DigestOf(uint64_t granule, uint64_t begin, std::span<const std::byte> bytes) const {
    // Bytes at another position, or of another object, must not match.
    const std::array<uint64_t, 4> position{seed_, granule, begin, bytes.size()};
    const uint64_t digest = Checksum64(bytes) ^ Checksum64(std::as_bytes(std::span(position)));
    return digest == 0 ? 1 : digest;
  }

  /// Returns whether the part of a granule that `entry` describes is intact. Fills `scratch`, of
  /// kGranuleBytes, with it.
  bool ReadVerified(uint64_t granule, const Entry& entry, std::span<std::byte> scratch) const {
    if (entry.digest == 0 || entry.begin >= entry.end || entry.end > kGranuleBytes) return false;
    const auto present = scratch.subspan(entry.begin, entry.end - entry.begin);
    return ReadFull(bytes_.get(), granule * kGranuleBytes + entry.begin, present) &&
           DigestOf(granule, entry.begin, present) == entry.digest;
  }

  /// Returns the entry for a part of a granule that was written, joined with what is there already.
  Entry Join(uint64_t granule, uint64_t begin, std::span<const std::byte> bytes) const {
    const uint64_t end = begin + bytes.size();
    Entry own{
        .digest = 0, .begin = static_cast<uint32_t>(begin), .end = static_cast<uint32_t>(end)};
    Entry found;
    std::array<std::byte, kGranuleBytes> scratch;
    const bool is_whole = bytes.size() == kGranuleBytes;
    if (!is_whole &&
        ReadFull(digests_.get(), EntryOffset(granule),
                 std::as_writable_bytes(std::span(&found, 1))) &&
        found.begin <= end && begin <= found.end && ReadVerified(granule, found, scratch)) {
      std::ranges::copy(bytes, scratch.begin() + static_cast<ptrdiff_t>(begin));
      own.begin = std::min(own.begin, found.begin);
      own.end = std::max(own.end, found.end);
      own.digest =
          DigestOf(granule, own.begin, std::span(scratch).subspan(own.begin, own.end - own.begin));
      return own;
    }
    own.digest = DigestOf(granule, begin, bytes);
    return own;
  }

  FileDescriptor bytes_;
  FileDescriptor digests_;
  uint64_t seed_;
};

CacheDirectory::CacheDirectory(const CacheOptions& options, std::string_view storage)
    : directory_(AbsolutePath(options.directory)),
      storage_name_(fmt::format("{:016x}", Checksum64(AsBytes(storage)))),
      max_bytes_(options.max_bytes),
      added_bytes_(options.max_bytes) {  // evicts after the first bytes, for short processes
  (void)OpenFolders();
}

Result<CacheDirectory::FoldersPtr> CacheDirectory::MakeFolders() const {
  std::error_code failed;
  std::filesystem::create_directories(directory_, failed);
  const std::string path = fmt::format("{}/cairn-cache-{}", directory_, ::geteuid());
  auto folders = std::make_shared<Folders>();
  CAIRN_TRY_ASSIGN(folders->cache, OpenFolder(path));
  CAIRN_TRY(CheckMark(folders->cache.get(), path));
  CAIRN_TRY_ASSIGN(folders->storage, OpenFolder({folders->cache.get(), storage_name_,
                                                 fmt::format("{}/{}", path, storage_name_)}));
  return folders;
}

CacheDirectory::FoldersPtr CacheDirectory::OpenFolders() {
  auto folders = MakeFolders();
  const bool is_ours = folders || folders.error().code != ErrorCode::kFailedPrecondition;
  const MutexLock lock(mutex_);
  folders_ = folders ? *folders : nullptr;
  folder_check_ = is_ours ? Result<void>() : Fail(folders.error());
  return folders_;
}

Result<void> CacheDirectory::CheckFolder() const {
  const MutexLock lock(mutex_);
  return folder_check_;
}

CacheDirectory::FoldersPtr CacheDirectory::HeldFolders() const {
  const MutexLock lock(mutex_);
  return folders_;
}

FilePlace CacheDirectory::PlaceOf(const Folders& folders, std::string_view name) const {
  std::string flat = FlatName(name);
  std::string path =
      fmt::format("{}/cairn-cache-{}/{}/{}", directory_, ::geteuid(), storage_name_, flat);
  return {folders.storage.get(), std::move(flat), std::move(path)};
}

Result<CacheDirectory::Object> CacheDirectory::Open(std::string_view name, bool create) {
  FoldersPtr folders = HeldFolders();
  if (folders != nullptr) {
    auto opened = Object::Open(PlaceOf(*folders, name), name, create);
    if (opened || !create || opened.error().code != ErrorCode::kNotFound) return opened;
  }
  // There never were any, or somebody has removed them.
  folders = create ? OpenFolders() : nullptr;
  if (folders == nullptr) return Fail(ErrorCode::kNotFound, "there is no folder of the cache");
  return Object::Open(PlaceOf(*folders, name), name, create);
}

bool CacheDirectory::Read(std::string_view name, uint64_t offset_bytes,
                          std::span<std::byte> target) {
  const auto object = Open(name, /*create=*/false);
  return object && object->Read(offset_bytes, target);
}

std::optional<std::vector<std::byte>> CacheDirectory::ReadWhole(std::string_view name,
                                                                uint64_t limit_bytes) {
  const auto object = Open(name, /*create=*/false);
  if (!object) return std::nullopt;
  const auto size_bytes = object->Size();
  if (!size_bytes || *size_bytes > limit_bytes) return std::nullopt;
  std::vector<std::byte> bytes(*size_bytes);
  if (!bytes.empty() && !object->Read(0, bytes)) return std::nullopt;
  return bytes;
}

void CacheDirectory::Add(std::string_view name, uint64_t offset_bytes,
                         std::span<const std::byte> bytes, bool is_whole) {
  {
    const MutexLock lock(mutex_);
    if (std::chrono::steady_clock::now() < blocked_until_) return;
  }
  const Result<void> added = TryAdd(name, offset_bytes, bytes, is_whole);
  {
    const MutexLock lock(mutex_);
    if (!added) blocked_until_ = std::chrono::steady_clock::now() + kPauseAfterError;
    added_bytes_ += bytes.size();
    if (added && added_bytes_ < max_bytes_ / kAddedFraction) return;
    added_bytes_ = 0;
  }
  Evict();  // also after an error: the file system may have less space than the limit
}

Result<void> CacheDirectory::TryAdd(std::string_view name, uint64_t offset_bytes,
                                    std::span<const std::byte> bytes, bool is_whole) {
  CAIRN_TRY_ASSIGN(Object object, Open(name, /*create=*/true));
  CAIRN_TRY(object.Write(offset_bytes, bytes));
  return is_whole ? object.SetSize(bytes.size()) : Result<void>();
}

void CacheDirectory::Remove(std::string_view name) {
  if (const FoldersPtr folders = HeldFolders()) RemoveFiles(folders->storage.get(), FlatName(name));
}

std::string CacheDirectory::ReadNewestRoot() const {
  const FoldersPtr folders = HeldFolders();
  if (folders == nullptr) return {};
  const FileDescriptor file(::openat(folders->storage.get(), kNewestRootName,
                                     O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  std::array<char, kMaxRootNameBytes> text;
  const ssize_t length = file.is_open() ? ::read(file.get(), text.data(), text.size()) : 0;
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(length, 0))};
}

void CacheDirectory::SetNewestRoot(std::string_view name) {
  const FoldersPtr folders = HeldFolders();
  if (folders == nullptr) return;
  // A rename, so that readers see one name or the other. Best effort: the name only saves a round
  // trip.
  const int folder = folders->storage.get();
  const std::string temporary = fmt::format("{}.{}", kNewestRootName, ::getpid());
  {
    const FileDescriptor file(::openat(
        folder, temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.is_open()) return;
    if (::write(file.get(), name.data(), name.size()) != static_cast<ssize_t>(name.size())) return;
  }
  (void)::renameat(folder, temporary.c_str(), folder, kNewestRootName);
}

uint64_t CacheDirectory::LimitBytes(const Folders& folders) const {
  struct statvfs status;
  if (::fstatvfs(folders.cache.get(), &status) != 0) return max_bytes_;
  return std::min<uint64_t>(max_bytes_, status.f_blocks * status.f_frsize / 2);
}

void CacheDirectory::Evict() {
  const FoldersPtr folders = HeldFolders();
  if (folders == nullptr) return;
  const int cache = folders->cache.get();
  const FileDescriptor lock(
      ::openat(cache, kLockName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.is_open() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  std::vector<StoredObject> objects;
  const auto entries = ReadEntries({cache, ".", directory_}, DirectoryLinks::kIgnore);
  if (!entries) return;
  for (const std::string& name : entries->directories) {
    if (IsHexDigits(name, kStorageDigits)) FindObjects(cache, name, objects);
  }
  uint64_t total_bytes = 0;
  for (const StoredObject& object : objects) total_bytes += object.allocated_bytes;
  const uint64_t limit_bytes = LimitBytes(*folders);
  if (total_bytes <= limit_bytes - limit_bytes / kFreeFraction) return;
  std::ranges::sort(objects, {}, &StoredObject::used_ns);
  for (const StoredObject& object : objects) {
    if (total_bytes <= limit_bytes - limit_bytes / kFreedFraction) break;
    const FileDescriptor folder = OpenStorageFolder(cache, object.storage);
    if (folder.is_open()) RemoveFiles(folder.get(), object.flat_name);
    total_bytes -= object.allocated_bytes;
  }
}

}  // namespace cairn::kv::internal
