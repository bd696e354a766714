#pragma once
/// Ranged reads: the header, and whether a response contains the range.

#include <cstdint>
#include <string>

#include "kv/storage/s3/internal/http_request.h"
#include "kv/storage/s3/internal/s3_errors.h"

namespace cairn::kv::internal {

/// A range of bytes of an object.
struct S3Range {
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;  // at least 1
};
/// Returns "Range: bytes=0-9".
std::string RangeHeader(const S3Range& range);

/// Judges a successful response (200 or 206) whose body is in the target. kDataLoss: the object
/// ends before the range. kRetry: the response contradicts itself, or is a part of the range.
/// kUnimplemented: the server ignores ranges.
S3Outcome JudgeRange(const HttpResponse& response, const S3Range& range,
                     const std::string& operation, const std::string& endpoint);

}  // namespace cairn::kv::internal
