// Chooses between the cache and the storage for each request.

#include "kv/storage/cache/internal/cached_storage.h"

#include <utility>

#include "kv/storage/cache/internal/cached_queue.h"
#include "kv/storage/internal/concurrent_requests.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

// A larger root is read after the listing.
constexpr uint64_t kMaxReadAheadBytes = 1 << 20;

/// Returns whether the name belongs to an object with a random id.
bool IsCacheable(std::string_view name) { return ParseObjectName(name).has_value(); }

}  // namespace

CachedStorage::CachedStorage(std::shared_ptr<Storage> base, const CacheOptions& options)
    : base_(std::move(base)),
      cache_(options, base_->identity()),
      newest_root_(cache_.ReadNewestRoot()) {
  CAIRN_CHECK(base_->local_files() == nullptr);
  if (!ParseRootName(newest_root_)) newest_root_.clear();
}

Result<void> CachedStorage::Put(std::string_view name, std::span<const std::byte> bytes) {
  return base_->Put(name, bytes);
}

Result<void> CachedStorage::PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) {
  return base_->PutIfAbsent(name, bytes);
}

Result<std::unique_ptr<ObjectWriter>> CachedStorage::Create(std::string_view name) {
  return base_->Create(name);
}

Result<std::unique_ptr<Upload>> CachedStorage::BeginUpload(std::string_view name,
                                                           uint64_t part_bytes) {
  return base_->BeginUpload(name, part_bytes);
}

Result<uint64_t> CachedStorage::Size(std::string_view name) { return base_->Size(name); }

Result<void> CachedStorage::ReadRange(std::string_view name, uint64_t offset_bytes,
                                      std::span<std::byte> target) {
  if (!IsCacheable(name)) return base_->ReadRange(name, offset_bytes, target);
  if (cache_.Read(name, offset_bytes, target)) return {};
  CAIRN_TRY(base_->ReadRange(name, offset_bytes, target));
  cache_.Add(name, offset_bytes, target);
  return {};
}

Result<std::vector<std::byte>> CachedStorage::Read(std::string_view name, uint64_t limit_bytes) {
  if (ParseRootName(name)) {
    auto root = TakeReadAhead(name);
    if (root && root->size() <= limit_bytes) return *std::move(root);
    auto bytes = base_->Read(name, limit_bytes);
    if (bytes) NoteRoot(name);
    return bytes;
  }
  if (!IsCacheable(name)) return base_->Read(name, limit_bytes);
  if (auto cached = cache_.ReadWhole(name, limit_bytes)) return *std::move(cached);
  CAIRN_TRY_ASSIGN(std::vector<std::byte> bytes, base_->Read(name, limit_bytes));
  cache_.AddWhole(name, bytes);
  return bytes;
}

Result<std::vector<std::string>> CachedStorage::List(std::string_view prefix) {
  return prefix == kRootFolder ? ListRoots(prefix) : base_->List(prefix);
}

Result<std::vector<std::string>> CachedStorage::ListRoots(std::string_view prefix) {
  std::string newest;
  {
    const MutexLock lock(mutex_);
    newest = newest_root_;
  }
  // One request after another would take longer than reading the root if it is needed.
  if (newest.empty() || base_->transfer_sizes().small_requests <= 1) return base_->List(prefix);
  Result<std::vector<std::string>> names = std::vector<std::string>();
  Result<std::vector<std::byte>> root = std::vector<std::byte>();
  CAIRN_TRY(RunRequests(*base_, {[&]() -> Result<void> {
                                   names = base_->List(prefix);
                                   return {};
                                 },
                                 [&]() -> Result<void> {
                                   root = base_->Read(newest, kMaxReadAheadBytes);
                                   return {};
                                 }}));
  const MutexLock lock(mutex_);
  read_ahead_.reset();
  if (root) {
    read_ahead_ = Object{.name = std::move(newest), .bytes = *std::move(root)};
  } else if (root.error().code == ErrorCode::kNotFound && newest_root_ == newest) {
    newest_root_.clear();  // the store may have been created again, with lower numbers
  }
  return names;
}

std::optional<std::vector<std::byte>> CachedStorage::TakeReadAhead(std::string_view name) {
  const MutexLock lock(mutex_);
  if (!read_ahead_ || read_ahead_->name != name) return std::nullopt;
  std::vector<std::byte> bytes = std::move(read_ahead_->bytes);
  read_ahead_.reset();
  return bytes;
}

void CachedStorage::NoteRoot(std::string_view name) {
  {
    const MutexLock lock(mutex_);
    // Names of newer roots are smaller.
    if (!newest_root_.empty() && newest_root_ <= name) return;
    newest_root_ = name;
  }
  cache_.SetNewestRoot(name);
}

bool CachedStorage::has_been_read() const {
  const MutexLock lock(mutex_);
  return !newest_root_.empty();
}

Result<void> CachedStorage::Remove(std::string_view name) {
  CAIRN_TRY(base_->Remove(name));
  if (IsCacheable(name)) cache_.Remove(name);
  return {};
}

Result<std::unique_ptr<IoQueue>> CachedStorage::MakeQueue(uint32_t depth) {
  CAIRN_TRY_ASSIGN(auto queue, base_->MakeQueue(depth));
  return MakeCachedQueue(cache_, std::move(queue));
}

}  // namespace cairn::kv::internal
