#pragma once
/// Judges the responses of an S3 server: success, another attempt, or an error for the caller.

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "kv/base/error.h"
#include "kv/storage/s3/internal/http_transfer.h"

namespace cairn::kv::internal {

enum class S3Verdict : uint8_t {
  kSuccess,
  kRetry,           // the same request may succeed later
  kRetryWithOther,  // the request's credentials have expired or are not known
  kFailed,
};

struct S3Outcome {
  S3Verdict verdict = S3Verdict::kSuccess;
  /// The caller's error unless another attempt succeeds. Error::file is not set.
  Error error;
  std::chrono::milliseconds retry_after{};  // the server requests it; otherwise 0
  bool was_unreachable = false;             // there was no connection to the server
};

/// Returns at most 300 characters of what a server wrote, without control characters.
std::string Printable(std::string_view text);

/// Judges a response. `operation` completes "cannot ..."; `endpoint` and `region` belong to the
/// request. Contains nothing of the request's headers.
S3Outcome JudgeResponse(const HttpResponse& response, const std::string& operation,
                        const std::string& endpoint, const std::string& region);

/// Judges a successful response (200 or 206) whose body is in the target, to a request for
/// `length_bytes` (at least 1) from `offset_bytes` on. kDataLoss: the object ends before the range.
/// kRetry: the response contradicts itself, or is a part of the range. kUnimplemented: the server
/// ignores ranges.
S3Outcome JudgeRange(const HttpResponse& response, uint64_t offset_bytes, uint64_t length_bytes,
                     const std::string& operation, const std::string& endpoint);

}  // namespace cairn::kv::internal
