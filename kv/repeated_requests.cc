#include "kv/repeated_requests.h"

#include "kv/internal/s3/repeated_request_counter.h"
#include "kv/internal/s3/s3_settings.h"

namespace cairn::kv {

uint64_t RepeatedRequests(const std::string& address) {
  const auto parsed = internal::ParseS3Address(address);
  if (!parsed) return 0;
  return internal::RepeatedRequestCounter(internal::PlainAddress(*parsed));
}

}  // namespace cairn::kv
