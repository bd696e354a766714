// Files of cached objects, and their eviction.

#include "kv/internal/storage/cache/cache_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "kv/digest.h"
#include "kv/file_descriptor.h"
#include "kv/internal/io/file.h"

namespace cairn::kv::internal {
namespace {

constexpr std::string_view kLockName = ".lock";
constexpr std::string_view kNewestRootName = "newest-root";
constexpr uint64_t kMaxRootNameBytes = 256;
// Fractions of the limit: what a process adds before it looks, what remains free for the processes
// that have not looked yet, and what an eviction frees.
constexpr uint64_t kAddedFraction = 64;
constexpr uint64_t kFreeFraction = 8;
constexpr uint64_t kFreedFraction = 4;
constexpr int64_t kPauseAfterErrorMs = 10'000;

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// An object on disk.
struct StoredObject {
  std::string path;
  uint64_t allocated_bytes = 0;
  int64_t used_ns = 0;
};

/// Adds the objects in one directory of the cache.
void FindObjects(const std::string& directory, std::vector<StoredObject>& objects) {
  const auto names = ListDirectory(directory);
  if (!names) return;
  std::map<std::string, StoredObject> by_path;
  for (const std::string& name : *names) {
    struct stat status;
    const std::string path = fmt::format("{}/{}", directory, name);
    if (name.starts_with(kNewestRootName) || ::lstat(path.c_str(), &status) != 0 ||
        !S_ISREG(status.st_mode)) {
      continue;
    }
    const bool is_digests = name.ends_with(kDigestSuffix);
    StoredObject& object =
        by_path[is_digests ? path.substr(0, path.size() - kDigestSuffix.size()) : path];
    object.allocated_bytes += static_cast<uint64_t>(status.st_blocks) * 512;
    // Reads touch the digests. Without those, the bytes are of no use.
    if (is_digests) {
      object.used_ns = status.st_mtim.tv_sec * 1'000'000'000LL + status.st_mtim.tv_nsec;
    }
  }
  for (auto& [path, object] : by_path) {
    object.path = path;
    objects.push_back(std::move(object));
  }
}

/// Removes both files. The digests first, so that bytes without digests remain after a kill. Other
/// processes may have the files open, so their space is freed before their names are removed.
void RemoveFiles(const std::string& path) {
  (void)::unlink((path + std::string(kDigestSuffix)).c_str());
  (void)::truncate(path.c_str(), 0);
  (void)::unlink(path.c_str());
}

}  // namespace

CacheDirectory::CacheDirectory(const CacheOptions& options, std::string_view storage)
    : root_(options.directory),
      directory_(fmt::format("{}/{:016x}", options.directory, Checksum64(AsBytes(storage)))),
      max_bytes_(options.max_bytes),
      added_bytes_(options.max_bytes) {}  // evicts after the first bytes, for short processes

std::string CacheDirectory::PathOf(std::string_view name) const {
  std::string flat(name);
  std::ranges::replace(flat, '/', '-');
  return fmt::format("{}/{}", directory_, flat);
}

CacheDirectory::ObjectPtr CacheDirectory::FindOpen(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, found->second);
  return found->second->second;
}

CacheDirectory::ObjectPtr CacheDirectory::Open(std::string_view name, bool create) {
  if (ObjectPtr found = FindOpen(name)) {
    if (found->Touch()) return found;
    Forget(name);  // another process has removed its files
  }
  auto opened = CachedObject::Open(PathOf(name), name, create);
  if (!opened && create && opened.error().code == ErrorCode::kNotFound) {
    std::error_code failed;
    std::filesystem::create_directories(directory_, failed);
    // Only this user writes here: who can change both bytes and digests can change what loads
    // return.
    (void)::chmod(directory_.c_str(), 0700);
    opened = CachedObject::Open(PathOf(name), name, create);
  }
  if (!opened) {
    if (create || opened.error().code != ErrorCode::kNotFound) RecordError(opened.error());
    return nullptr;
  }
  (void)(*opened)->Touch();
  const MutexLock lock(mutex_);
  if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second->second;
  recent_.emplace_front(name, *opened);
  by_name_.emplace(name, recent_.begin());
  if (recent_.size() > kMaxOpen) {
    by_name_.erase(recent_.back().first);
    recent_.pop_back();
  }
  return *std::move(opened);
}

void CacheDirectory::Forget(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;
  recent_.erase(found->second);
  by_name_.erase(found);
}

bool CacheDirectory::Read(std::string_view name, uint64_t offset_bytes,
                          std::span<std::byte> target) {
  const ObjectPtr object = Open(name, /*create=*/false);
  if (object == nullptr) return false;
  const CachedObject::Outcome outcome = object->Read(offset_bytes, target);
  const MutexLock lock(mutex_);
  if (outcome == CachedObject::Outcome::kDamaged) ++statistics_.damaged_count;
  if (outcome == CachedObject::Outcome::kHit) statistics_.hit_bytes += target.size();
  return outcome == CachedObject::Outcome::kHit;
}

std::optional<std::vector<std::byte>> CacheDirectory::ReadWhole(std::string_view name,
                                                                uint64_t limit_bytes) {
  const ObjectPtr object = Open(name, /*create=*/false);
  if (object == nullptr) return std::nullopt;
  const auto size_bytes = object->Size();
  if (!size_bytes || *size_bytes > limit_bytes) return std::nullopt;
  std::vector<std::byte> bytes(*size_bytes);
  if (!bytes.empty() && !Read(name, 0, bytes)) return std::nullopt;
  return bytes;
}

bool CacheDirectory::CanAdd() const {
  const MutexLock lock(mutex_);
  return blocked_until_ms_ == 0 || NowMs() >= blocked_until_ms_;
}

void CacheDirectory::RecordError(const Error& error) {
  const MutexLock lock(mutex_);
  ++statistics_.error_count;
  statistics_.last_error = error.ToString();
  blocked_until_ms_ = NowMs() + kPauseAfterErrorMs;
}

void CacheDirectory::CountAdded(uint64_t bytes) {
  {
    const MutexLock lock(mutex_);
    statistics_.stored_bytes += bytes;
    added_bytes_ += bytes;
    if (added_bytes_ < max_bytes_ / kAddedFraction) return;
    added_bytes_ = 0;
  }
  Evict();
}

void CacheDirectory::Add(std::string_view name, uint64_t offset_bytes,
                         std::span<const std::byte> bytes) {
  if (!CanAdd()) return;
  const ObjectPtr object = Open(name, /*create=*/true);
  if (object == nullptr) return;
  if (const auto written = object->Write(offset_bytes, bytes); !written) {
    RecordError(written.error());
    Evict();  // the file system may have less space than the limit
    return;
  }
  CountAdded(bytes.size());
}

void CacheDirectory::AddWhole(std::string_view name, std::span<const std::byte> bytes) {
  Add(name, 0, bytes);
  if (!CanAdd()) return;
  const ObjectPtr object = Open(name, /*create=*/true);
  if (object == nullptr) return;
  if (const auto written = object->SetSize(bytes.size()); !written) RecordError(written.error());
}

void CacheDirectory::Remove(std::string_view name) {
  Forget(name);
  RemoveFiles(PathOf(name));
}

std::string CacheDirectory::ReadNewestRoot() const {
  const auto bytes = ReadWholeFile(fmt::format("{}/{}", directory_, kNewestRootName),
                                   kMaxRootNameBytes, /*fault_point=*/nullptr);
  if (!bytes) return {};
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

void CacheDirectory::SetNewestRoot(std::string_view name) {
  std::error_code failed;
  std::filesystem::create_directories(directory_, failed);
  // A rename, so that readers see one name or the other. Best effort: the name only saves a round
  // trip.
  const std::string path = fmt::format("{}/{}", directory_, kNewestRootName);
  const std::string temporary = fmt::format("{}.{}", path, ::getpid());
  {
    const FileDescriptor file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.is_open()) return;
    if (::write(file.get(), name.data(), name.size()) != static_cast<ssize_t>(name.size())) return;
  }
  (void)::rename(temporary.c_str(), path.c_str());
}

uint64_t CacheDirectory::LimitBytes() const {
  struct statvfs status;
  if (::statvfs(root_.c_str(), &status) != 0) return max_bytes_;
  return std::min<uint64_t>(max_bytes_, status.f_blocks * status.f_frsize / 2);
}

void CacheDirectory::Evict() {
  const FileDescriptor lock(
      ::open(fmt::format("{}/{}", root_, kLockName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.is_open() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  std::vector<StoredObject> objects;
  const auto directories = ListDirectory(root_);
  if (!directories) return;
  for (const std::string& name : *directories) {
    if (name != kLockName) FindObjects(fmt::format("{}/{}", root_, name), objects);
  }
  uint64_t total_bytes = 0;
  for (const StoredObject& object : objects) total_bytes += object.allocated_bytes;
  const uint64_t limit_bytes = LimitBytes();
  if (total_bytes <= limit_bytes - limit_bytes / kFreeFraction) return;
  std::ranges::sort(objects, {}, &StoredObject::used_ns);
  for (const StoredObject& object : objects) {
    if (total_bytes <= limit_bytes - limit_bytes / kFreedFraction) break;
    RemoveFiles(object.path);
    total_bytes -= object.allocated_bytes;
  }
}

CacheStatistics CacheDirectory::statistics() const {
  const MutexLock lock(mutex_);
  return statistics_;
}

}  // namespace cairn::kv::internal
