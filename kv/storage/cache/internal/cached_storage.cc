// Chooses between the cache and the storage for each request.

#include "kv/storage/cache/internal/cached_storage.h"

#include <deque>
#include <span>
#include <utility>

#include "kv/io/internal/io_environment.h"
#include "kv/storage/files/internal/directory_storage.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

// A larger root is read after the listing.
constexpr uint64_t kMaxReadAheadBytes = 1 << 20;

constexpr uint64_t kMinBytes = 1 << 20;
constexpr uint64_t kMaxBytes = ~uint64_t{0} >> 1;

/// Returns whether this object is cached.
bool HasRandomId(std::string_view name) { return ParseObjectName(name).has_value(); }

/// Reads of bytes in the cache complete when they are submitted; all other requests go to `base`,
/// and the cache gets what they read. Ownership: `cache` outlives it.
class CachedQueue final : public IoQueue {
 public:
  CachedQueue(CacheDirectory& cache, std::unique_ptr<IoQueue> base)
      : IoQueue(base->depth()), cache_(cache), base_(std::move(base)) {}

  Result<void> Submit(const IoRequest& request) override {
    CAIRN_CHECK(in_flight_ < depth_);
    if (IsCacheable(request) && cache_.Read(request.object, request.offset_bytes,
                                            std::span(request.data, request.length_bytes))) {
      IoCompletion completion;
      completion.request = request;
      completion.done_bytes = request.length_bytes;
      completions_.push_back(std::move(completion));
    } else {
      CAIRN_TRY(base_->Submit(request));
    }
    ++in_flight_;
    return {};
  }

  Result<IoCompletion> Wait() override {
    CAIRN_CHECK(in_flight_ > 0);
    if (!completions_.empty()) {
      IoCompletion completion = std::move(completions_.front());
      completions_.pop_front();
      --in_flight_;
      return completion;
    }
    auto completion = base_->Wait();
    if (!completion) return completion;
    --in_flight_;
    const IoRequest& request = completion->request;
    if (IsCacheable(request) && !completion->error && completion->error_number == 0) {
      cache_.Add(request.object, request.offset_bytes,
                 std::span(request.data, completion->done_bytes));
    }
    return completion;
  }

  bool HasCompletion() override { return !completions_.empty() || base_->HasCompletion(); }
  const char* name() const override { return base_->name(); }

 private:
  static bool IsCacheable(const IoRequest& request) {
    return !request.write && HasRandomId(request.object);
  }

  CacheDirectory& cache_;
  const std::unique_ptr<IoQueue> base_;
  std::deque<IoCompletion> completions_;  // completions of reads from the cache
};

}  // namespace

CachedStorage::CachedStorage(std::shared_ptr<Storage> base, const CacheOptions& options)
    : base_(std::move(base)),
      cache_(options, base_->identity()),
      newest_root_(cache_.ReadNewestRoot()) {
  CAIRN_CHECK(base_->local_files() == nullptr);
  if (!ParseRootName(newest_root_)) newest_root_.clear();
}

Result<void> CachedStorage::ReadRange(std::string_view name, uint64_t offset_bytes,
                                      std::span<std::byte> target) {
  if (!HasRandomId(name)) return base_->ReadRange(name, offset_bytes, target);
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
  if (!HasRandomId(name)) return base_->Read(name, limit_bytes);
  if (auto cached = cache_.ReadWhole(name, limit_bytes)) return *std::move(cached);
  CAIRN_TRY_ASSIGN(std::vector<std::byte> bytes, base_->Read(name, limit_bytes));
  cache_.Add(name, 0, bytes, /*is_whole=*/true);
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
  if (HasRandomId(name)) cache_.Remove(name);
  return {};
}

Result<std::unique_ptr<IoQueue>> CachedStorage::MakeQueue(uint32_t depth) {
  CAIRN_TRY_ASSIGN(auto queue, base_->MakeQueue(depth));
  return std::make_unique<CachedQueue>(cache_, std::move(queue));
}

Result<std::shared_ptr<Storage>> WithReaderCache(std::shared_ptr<Storage> base) {
  const std::string_view directory = EnvironmentVariable("CAIRN_CACHE");
  if (base->local_files() != nullptr || directory.empty()) return base;
  CacheOptions options{.directory = std::string(directory)};
  CAIRN_TRY(CheckNamesNoHome(options.directory));
  CAIRN_TRY_ASSIGN(options.max_bytes,
                   IntegerVariable("CAIRN_CACHE_BYTES", kMinBytes, kMaxBytes, options.max_bytes));
  auto cached = std::make_shared<CachedStorage>(std::move(base), options);
  CAIRN_TRY(cached->CheckCache());
  return cached;
}

}  // namespace cairn::kv::internal
