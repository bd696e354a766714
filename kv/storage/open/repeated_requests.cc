#include "kv/storage/open/repeated_requests.h"

#include "kv/storage/s3/internal/repeated_request_counter.h"
#include "kv/storage/s3/internal/s3_settings.h"

namespace cairn::kv {

uint64_t RepeatedRequests(const std::string& address) {
  const auto parsed = internal::ParseS3Address(address);
  if (!parsed) return 0;
  return internal::RepeatedRequestCounter(internal::PlainAddress(*parsed));
}

}  // namespace cairn::kv
