// Code that all kinds of storage share.

#include "kv/storage/storage.h"

#include <fmt/format.h>

#include <thread>
#include <utility>

#include "kv/io/worker_pool.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv {

void Storage::AwaitChange(std::string_view, std::chrono::milliseconds timeout) {
  std::this_thread::sleep_for(timeout);
}

Result<std::vector<std::byte>> Storage::Read(std::string_view name, uint64_t limit_bytes) {
  CAIRN_TRY_ASSIGN(const uint64_t size_bytes, Size(name));
  if (size_bytes > limit_bytes) {
    return Fail(LongerThanLimit(internal::ObjectPath(address(), name), size_bytes, limit_bytes));
  }
  std::vector<std::byte> bytes(size_bytes);
  CAIRN_TRY(ReadRange(name, 0, bytes));
  return bytes;
}

Error LongerThanLimit(std::string path, uint64_t size_bytes, uint64_t limit_bytes) {
  return {.code = ErrorCode::kDataLoss,
          .message = fmt::format("the object has {} bytes, more than the limit of {}", size_bytes,
                                 limit_bytes),
          .file = std::move(path)};
}

Error EndsBeforeRange(std::string path, uint64_t size_bytes, uint64_t offset_bytes) {
  return {.code = ErrorCode::kDataLoss,
          .message = fmt::format("the object has {} bytes and ends before the range", size_bytes),
          .file = std::move(path),
          .offset_bytes = offset_bytes};
}

Result<void> CheckStored(Storage& storage, std::string_view name, uint64_t size_bytes) {
  const Result<uint64_t> found_bytes = storage.Size(name);
  if (found_bytes && *found_bytes == size_bytes) return {};
  if (!found_bytes && found_bytes.error().code != ErrorCode::kNotFound) {
    return Fail(found_bytes.error());
  }
  const std::string found = found_bytes ? fmt::format("has {} bytes", *found_bytes) : "is absent";
  return Fail(ErrorCode::kUnavailable,
              fmt::format("the storage acknowledged a write of {} bytes, but the "
                          "object {}",
                          size_bytes, found),
              internal::ObjectPath(storage.address(), name));
}

Result<bool> ObjectExists(Storage& storage, std::string_view name) {
  const Result<uint64_t> size_bytes = storage.Size(name);
  if (size_bytes) return true;
  if (size_bytes.error().code == ErrorCode::kNotFound) return false;
  return Fail(size_bytes.error());
}

Result<void> ForEachRequest(const Storage& storage, size_t count,
                            const std::function<Result<void>(size_t)>& request) {
  return RunOnThreads(count, "requests to the storage", request,
                      storage.transfer_sizes().small_requests);
}

Result<void> RunRequests(const Storage& storage,
                         std::initializer_list<std::function<Result<void>()>> requests) {
  return ForEachRequest(storage, requests.size(), [&](size_t i) { return requests.begin()[i](); });
}

}  // namespace cairn::kv
