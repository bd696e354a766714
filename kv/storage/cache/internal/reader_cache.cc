#include "kv/storage/cache/internal/reader_cache.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "kv/storage/cache/internal/cached_storage.h"

namespace cairn::kv::internal {
namespace {

constexpr const char* kDirectoryVariable = "CAIRN_CACHE";
constexpr const char* kBytesVariable = "CAIRN_CACHE_BYTES";
constexpr uint64_t kMinBytes = 1 << 20;
constexpr uint64_t kMaxBytes = ~uint64_t{0} >> 1;

std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

Result<CacheOptions> OptionsFromEnvironment() {
  CacheOptions options{.directory = std::string(Variable(kDirectoryVariable))};
  const std::string_view text = Variable(kBytesVariable);
  if (text.empty()) return options;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < kMinBytes ||
      value > kMaxBytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the environment variable {} is '{}'; it must be an integer from {} "
                            "to {}",
                            kBytesVariable, text, kMinBytes, kMaxBytes));
  }
  options.max_bytes = value;
  return options;
}

}  // namespace

Result<std::shared_ptr<Storage>> WithReaderCache(std::shared_ptr<Storage> base) {
  if (base->local_files() != nullptr || Variable(kDirectoryVariable).empty()) return base;
  CAIRN_TRY_ASSIGN(const CacheOptions options, OptionsFromEnvironment());
  auto cached = std::make_shared<CachedStorage>(std::move(base), options);
  CAIRN_TRY(cached->CheckCache());
  return cached;
}

}  // namespace cairn::kv::internal
