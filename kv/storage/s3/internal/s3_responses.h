#pragma once
/// Judges the responses of an S3 server: success, another attempt, or an error for the caller; and
/// the XML documents of S3's API that Cairn uses
/// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations.html).

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

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

/// An <Error> document. All fields are empty if the text is not one.
struct S3ErrorDocument {
  std::string code;  // "NoSuchKey"
  std::string message;
  std::string request_id;
  std::string region;
};
S3ErrorDocument ParseS3Error(std::string_view text);

/// One page of a listing of objects, or of uploads that are not complete.
struct S3Listing {
  struct Entry {
    std::string key;
    std::string upload_id;  // empty in the result of ListObjectsV2
    friend auto operator<=>(const Entry&, const Entry&) = default;
  };
  std::vector<Entry> entries;
  /// Parameters of the request for the next page; empty if there is none.
  std::map<std::string, std::string> next;
};
/// kUnavailable: it is not such a document, for example because it is not complete.
Result<S3Listing> ParseS3Listing(std::string_view text);

/// Parses the response to CreateMultipartUpload. kUnavailable: it has no upload id.
Result<std::string> ParseUploadId(std::string_view text);

struct S3Part {
  std::string etag;
  std::string crc32;  // base64; empty if parts have no digest
};
/// Returns the body of CompleteMultipartUpload; part i has number i + 1.
std::string CompleteUploadBody(const std::vector<S3Part>& parts);

}  // namespace cairn::kv::internal
