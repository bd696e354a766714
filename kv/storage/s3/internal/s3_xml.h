#pragma once
/// The XML documents of S3's API that Cairn uses
/// (https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations.html).

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"

namespace cairn::kv::internal {

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
  struct Upload {
    std::string key;
    std::string upload_id;
    friend auto operator<=>(const Upload&, const Upload&) = default;
  };
  std::vector<std::string> keys;  // result of ListObjectsV2
  std::vector<Upload> uploads;    // result of ListMultipartUploads
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
