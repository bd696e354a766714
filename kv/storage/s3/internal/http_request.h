#pragma once
/// HTTP requests and their responses.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/io/io_queue.h"

namespace cairn::kv::internal {

/// Signs a request with AWS Signature Version 4. The secret is never part of a message or a header.
struct HttpSignature {
  std::string scope;  // "aws:amz:REGION:s3"
  std::string access_key_id;
  std::string secret_access_key;
};

struct HttpRequest {
  std::string method = "GET";
  std::string url;                   // complete; its query is sorted and encoded
  std::vector<std::string> headers;  // "Name: value"
  /// Sent by PUT and POST. Not copied: the memory must outlive the request.
  std::span<const std::byte> body;
  /// If not empty: filled by the body of a response with status 200 or 206. The memory must outlive
  /// the request. Its contents are unspecified unless the response fills it.
  std::span<std::byte> target;
  /// If not empty: filled one after another instead of `target`. The slices must outlive the
  /// request.
  std::span<const IoSlice> slices;
  std::optional<HttpSignature> signature;
  std::chrono::steady_clock::time_point not_before;  // when to begin
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

enum class HttpFailure : uint8_t {
  kNone,       // there is a response
  kConnect,    // no connection; the server has not seen the request
  kTls,        // the server or its certificate is not acceptable
  kTransfer,   // the connection broke, or the response was incomplete
  kTimeout,    // the deadline has passed, or nothing was transferred for too long
  kTooLong,    // the response does not fit
  kCancelled,  // by Cancel or the destructor
  kInvalid,    // the request itself is wrong, such as its URL, or libcurl lacks an option
  kNoMemory,   // or no thread, so that the request was not begun
};

struct HttpResponse {
  HttpFailure failure = HttpFailure::kNone;
  std::string error;  // message of a failure, in libcurl's words
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;                                          // unless it filled `target`
  uint64_t target_bytes = 0;                                 // received in `target`

  /// Returns "" if there is no such header. `name` is in lower case.
  std::string_view Header(std::string_view name) const;
};

struct HttpOptions {
  std::string ca_bundle;  // path; if empty, the certificates of the system
  /// A request fails after this time without any transfer.
  std::chrono::seconds stall_timeout{15};
  std::chrono::milliseconds connect_timeout{10'000};
};

}  // namespace cairn::kv::internal
