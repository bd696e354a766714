// The kinds of addresses.

#include "kv/storage/open/open_storage.h"

#include <fmt/format.h>

#include "kv/storage/files/internal/directory_storage.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/rados/internal/rados_storage.h"
#include "kv/storage/s3/internal/s3_client.h"
#include "kv/storage/s3/internal/s3_settings.h"
#include "kv/storage/s3/internal/s3_storage.h"

namespace cairn::kv {

uint64_t RepeatedRequests(const std::string& address) {
  const auto parsed = internal::ParseS3Address(address);
  if (!parsed) return 0;
  return internal::RepeatedRequestCounter(internal::PlainAddress(*parsed));
}

Result<std::shared_ptr<Storage>> OpenStorage(const std::string& address, const S3Options& s3) {
  const size_t colon = address.find(':');
  const bool has_kind = colon != std::string::npos && colon < address.find('/');
  const std::string kind = has_kind ? address.substr(0, colon) : "file";
  const std::string rest = has_kind ? address.substr(colon + 1) : address;
  if (rest.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the address \"{}\" has no path or name", address));
  }
  if (kind == "file") {
    CAIRN_TRY(internal::CheckNamesNoHome(rest));
    return std::make_shared<internal::DirectoryStorage>(rest);
  }
  if (kind == "s3") return internal::OpenS3Storage(address, s3);
  if (kind == "rados") return internal::OpenRadosStorage(address);
  if (kind == "memory") return internal::MemoryStorage::Shared(rest);
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("unknown kind of storage \"{}:\" in \"{}\"; known are file:PATH, "
                          "s3://BUCKET/PREFIX, rados:POOL/NAMESPACE and memory:NAME, and a "
                          "path that contains ':' needs \"file:\" before it",
                          kind, address));
}

}  // namespace cairn::kv
