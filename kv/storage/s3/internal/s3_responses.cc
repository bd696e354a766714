// Statuses and codes of S3
// (https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html), and ranges (RFC 9110,
// section 14). XML is parsed with pugixml, which refuses nothing that is well-formed, so missing
// elements are checked.

#include "kv/storage/s3/internal/s3_responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <optional>
#include <pugixml.hpp>
#include <sstream>
#include <utility>

#include "kv/storage/s3/internal/s3_settings.h"

namespace cairn::kv::internal {
namespace {

using enum S3Verdict;
using enum ErrorCode;

struct KnownCode {
  std::string_view name;
  S3Verdict verdict;
  ErrorCode code;
  std::string_view advice = "";
};

constexpr std::string_view kRenew = "the credentials have expired; renew them";
constexpr std::string_view kLacking = "the server lacks a function that stores need";

constexpr KnownCode kKnownCodes[] = {
    {"NoSuchKey", kFailed, kNotFound},
    {"NoSuchBucket", kFailed, kNotFound,
     "create the bucket, or correct the address or the endpoint"},
    {"NoSuchUpload", kFailed, kNotFound},
    {"PreconditionFailed", kFailed, kConflict},
    // Another conditional write of the object is in progress.
    {"ConditionalRequestConflict", kRetry, kUnavailable},
    {"OperationAborted", kRetry, kUnavailable},
    {"InvalidRange", kFailed, kDataLoss},
    {"SlowDown", kRetry, kUnavailable, "the server limits the rate of requests"},
    {"InternalError", kRetry, kUnavailable},
    {"RequestTimeout", kRetry, kUnavailable},
    {"ServiceUnavailable", kRetry, kUnavailable},
    // The bytes changed on the way to the server; they are still right in memory.
    {"BadDigest", kRetry, kUnavailable},
    {"XAmzContentChecksumMismatch", kRetry, kUnavailable},
    {"IncompleteBody", kRetry, kUnavailable},
    {"ExpiredToken", kRetryWithOther, kUnavailable, kRenew},
    {"ExpiredTokenException", kRetryWithOther, kUnavailable, kRenew},
    {"TokenRefreshRequired", kRetryWithOther, kUnavailable, kRenew},
    {"InvalidToken", kRetryWithOther, kUnavailable, "check the session token"},
    {"InvalidAccessKeyId", kRetryWithOther, kUnavailable,
     "the server does not know this access key; check the credentials and the endpoint"},
    {"SignatureDoesNotMatch", kFailed, kUnavailable, "check the secret key and the region"},
    {"AccessDenied", kFailed, kUnavailable,
     "the credentials lack a permission for this bucket and prefix; a store needs s3:GetObject, "
     "s3:ListBucket and, to write, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload"},
    {"RequestTimeTooSkewed", kFailed, kFailedPrecondition,
     "the clock of this machine or of the server is wrong; synchronize it"},
    {"QuotaExceeded", kFailed, kResourceExhausted, "free some space"},
    {"EntityTooLarge", kFailed, kResourceExhausted},
    {"NotImplemented", kFailed, kUnimplemented, kLacking},
};

// For responses without a document, such as those to HEAD, and for unknown codes.
KnownCode ByStatus(int status) {
  switch (status) {
    case 404:
      return {"", kFailed, kNotFound};
    case 412:
      return {"", kFailed, kConflict};
    case 416:
      return {"", kFailed, kDataLoss};
    case 401:
    case 403:
      return {"", kFailed, kUnavailable,
              "check the credentials, and their permissions for this bucket and prefix"};
    case 408:
    case 409:
    case 425:
    case 429:
      return {"", kRetry, kUnavailable};
    case 501:
      return {"", kFailed, kUnimplemented, kLacking};
    case 507:
      return {"", kFailed, kResourceExhausted, "free some space"};
    default:
      return {"", status >= 500 ? kRetry : kFailed, kUnavailable};
  }
}

KnownCode Look(std::string_view code, int status) {
  const auto* known = std::ranges::find(kKnownCodes, code, &KnownCode::name);
  return known != std::end(kKnownCodes) ? *known : ByStatus(status);
}

struct KnownFailure {
  S3Verdict verdict;
  ErrorCode code;
  std::string_view advice = "";
  bool was_unreachable = false;
};

KnownFailure Look(CURLcode failure) {
  switch (failure) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
      return {kRetry, kUnavailable, "; check the endpoint, the network and the proxy settings",
              true};
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_SSL_ENGINE_SETFAILED:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_INVALIDCERTSTATUS:
      return {kFailed, kFailedPrecondition,
              "; for a server with its own certificate authority, set AWS_CA_BUNDLE"};
    case CURLE_FILESIZE_EXCEEDED:
      return {kFailed, kUnimplemented,
              "; the response is longer than what was requested, so the server or a proxy ignores "
              "ranges"};
    case CURLE_ABORTED_BY_CALLBACK:
      return {kFailed, kCancelled};
    case CURLE_OUT_OF_MEMORY:
      return {kFailed, kResourceExhausted};
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_UNKNOWN_OPTION:
    case CURLE_NOT_BUILT_IN:
    case CURLE_BAD_FUNCTION_ARGUMENT:
      return {kFailed, kInvalidArgument};
    default:  // the connection broke, or nothing was transferred for too long
      return {kRetry, kUnavailable};
  }
}

S3Outcome JudgeFailure(const HttpResponse& response, const std::string& operation,
                       const std::string& endpoint) {
  const KnownFailure known = Look(response.failure);
  S3Outcome outcome{.verdict = known.verdict, .was_unreachable = known.was_unreachable};
  outcome.error.code = known.code;
  outcome.error.message = fmt::format("cannot {}: no complete response from {}: {}{}", operation,
                                      endpoint, response.error, known.advice);
  return outcome;
}

std::string RegionOf(const HttpResponse& response, const S3ErrorDocument& document) {
  const std::string_view header = response.Header("x-amz-bucket-region");
  return header.empty() ? document.region : std::string(header);
}

// Names the host of a redirect without anything else of it, such as a query with a signature.
std::string RedirectAdvice(std::string_view location, const std::string& endpoint) {
  const size_t colon = location.find("://");
  if (colon == std::string_view::npos) return "check the endpoint and the region";
  std::string_view host = location.substr(colon + 3);
  host = host.substr(0, host.find_first_of("/?#\\"));
  host = host.substr(host.rfind('@') + 1);
  return fmt::format(
      "it redirects to the host {}, to which nothing was sent, because requests are only signed "
      "for the configured endpoint {}; check the endpoint and the region",
      Printable(host), endpoint);
}

// Whether a page, such as the login of a network, has come instead of what was requested. Servers
// of objects name each request, or the version of the object, and may label an empty response or an
// object as a page, too.
bool IsPageOfProxy(const HttpResponse& response) {
  return response.Header("content-type").starts_with("text/html") &&
         response.Header("x-amz-request-id").empty() && response.Header("etag").empty() &&
         (!response.body.empty() || response.target_bytes > 0);
}

std::chrono::milliseconds RetryAfter(const HttpResponse& response) {
  const std::string_view text = response.Header("retry-after");
  uint32_t seconds = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), seconds).ec != std::errc()) return {};
  return std::chrono::seconds(seconds);
}

struct ContentRange {
  uint64_t first = 0;
  uint64_t last = 0;
  std::string_view size;  // "*" if the server does not know it
};

// Parses "bytes 0-9/100".
std::optional<ContentRange> ParseContentRange(std::string_view text) {
  const std::string copy(text);
  ContentRange range;
  int end = 0;
  std::sscanf(copy.c_str(), "bytes %" SCNu64 "-%" SCNu64 "/%n", &range.first, &range.last, &end);
  if (end == 0 || range.last < range.first) return std::nullopt;
  range.size = text.substr(static_cast<size_t>(end));
  return range;
}

S3Outcome Outcome(S3Verdict verdict, ErrorCode code, std::string message) {
  S3Outcome outcome{.verdict = verdict};
  outcome.error.code = code;
  outcome.error.message = std::move(message);
  return outcome;
}

S3Outcome TooShort(std::string_view size, uint64_t length_bytes) {
  return Outcome(kFailed, kDataLoss,
                 fmt::format("the object has {} bytes and ends before the range of {} bytes", size,
                             length_bytes));
}

// Names without a namespace prefix, as servers write them.
pugi::xml_node Root(pugi::xml_document& document, std::string_view text) {
  if (!document.load_buffer(text.data(), text.size())) return {};
  return document.document_element();
}

std::unexpected<Error> NotUnderstood(std::string_view what) {
  return Fail(ErrorCode::kUnavailable, fmt::format("the response of the server is not {}", what));
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string printable(text.substr(0, 300));
  std::ranges::replace_if(printable, [](char c) { return static_cast<uint8_t>(c) < 0x20; }, ' ');
  return printable;
}

S3Outcome JudgeResponse(const HttpResponse& response, const std::string& operation,
                        const std::string& endpoint, const std::string& region) {
  if (response.failure != CURLE_OK) return JudgeFailure(response, operation, endpoint);
  const int status = response.status;
  // Some operations begin their response with 200 before they are performed.
  const S3ErrorDocument document = ParseS3Error(response.body);
  const bool is_success = status >= 200 && status < 300;
  const bool is_page = is_success && IsPageOfProxy(response);
  if (is_success && document.code.empty() && !is_page) return {};

  const KnownCode known = Look(document.code, is_success ? 500 : status);
  S3Outcome outcome{.verdict = known.verdict};
  outcome.retry_after = RetryAfter(response);
  outcome.error.code = known.code;
  std::string advice(known.advice);

  if (is_page) {
    advice =
        "this is a page of a proxy or a login, not an answer of the server; check the network "
        "and the proxy settings";
  }
  const std::string actual_region = RegionOf(response, document);
  if (status >= 300 && status < 400) {
    outcome.verdict = kFailed;
    outcome.error.code = kFailedPrecondition;
    advice = RedirectAdvice(response.Header("location"), endpoint);
  }
  if (IsRegionName(actual_region) && actual_region != region && status != 404) {
    outcome.error.code = kFailedPrecondition;
    advice = fmt::format(
        "the bucket is in region {0}, not {1}; set AWS_REGION={0}, or add "
        "?region={0} to the address",
        actual_region, region);
  }
  std::string request_id(response.Header("x-amz-request-id"));
  if (request_id.empty()) request_id = document.request_id;
  outcome.error.message =
      fmt::format("cannot {}: {} answered {}{}{}{}{}{}{}", operation, endpoint, status,
                  document.code.empty() ? "" : " ", Printable(document.code),
                  document.message.empty() ? "" : ": ", Printable(document.message),
                  request_id.empty() ? "" : fmt::format(" (request {})", Printable(request_id)),
                  advice.empty() ? "" : "; " + advice);
  return outcome;
}

S3Outcome JudgeRange(const HttpResponse& response, uint64_t offset_bytes, uint64_t length_bytes,
                     const std::string& operation, const std::string& endpoint) {
  if (response.status == 200) {
    if (offset_bytes != 0) {
      return Outcome(kFailed, kUnimplemented,
                     fmt::format("cannot {}: {} or a proxy ignores ranges", operation, endpoint));
    }
    if (response.target_bytes == length_bytes) return {};
    return TooShort(std::to_string(response.target_bytes), length_bytes);
  }
  const std::optional<ContentRange> found = ParseContentRange(response.Header("content-range"));
  const bool is_consistent = found && found->first == offset_bytes &&
                             found->last - found->first + 1 == response.target_bytes;
  // A server or a proxy may send less than was asked for, so its end may be elsewhere.
  const bool is_all = is_consistent && (response.target_bytes == length_bytes ||
                                        found->size == std::to_string(found->last + 1));
  if (!is_all) {
    return Outcome(kRetry, kUnavailable,
                   fmt::format("cannot {}: {} answered with {} bytes and the range \"{}\"",
                               operation, endpoint, response.target_bytes,
                               response.Header("content-range").substr(0, 80)));
  }
  if (response.target_bytes == length_bytes) return {};
  return TooShort(found->size, length_bytes);
}

S3ErrorDocument ParseS3Error(std::string_view text) {
  pugi::xml_document document;
  const pugi::xml_node root = Root(document, text);
  if (std::strcmp(root.name(), "Error") != 0) return {};
  return {.code = root.child_value("Code"),
          .message = root.child_value("Message"),
          .request_id = root.child_value("RequestId"),
          .region = root.child_value("Region")};
}

Result<S3Listing> ParseS3Listing(std::string_view text) {
  pugi::xml_document document;
  const pugi::xml_node root = Root(document, text);
  const bool of_objects = std::strcmp(root.name(), "ListBucketResult") == 0;
  const bool of_uploads = std::strcmp(root.name(), "ListMultipartUploadsResult") == 0;
  if (!of_objects && !of_uploads) return NotUnderstood("a listing");
  S3Listing listing;
  for (const pugi::xml_node entry : root.children(of_objects ? "Contents" : "Upload")) {
    listing.entries.push_back(
        {.key = entry.child_value("Key"), .upload_id = entry.child_value("UploadId")});
  }
  if (!root.child("IsTruncated").text().as_bool()) return listing;
  if (of_objects) {
    listing.next = {{"continuation-token", root.child_value("NextContinuationToken")}};
  } else {
    listing.next = {{"key-marker", root.child_value("NextKeyMarker")},
                    {"upload-id-marker", root.child_value("NextUploadIdMarker")}};
  }
  // Otherwise the same page would be requested again, or the rest would be missing.
  if (listing.next.begin()->second.empty()) return NotUnderstood("a complete page of a listing");
  return listing;
}

Result<std::string> ParseUploadId(std::string_view text) {
  pugi::xml_document document;
  std::string id = Root(document, text).child_value("UploadId");
  if (id.empty()) return NotUnderstood("that of the beginning of an upload");
  return id;
}

std::string CompleteUploadBody(const std::vector<S3Part>& parts) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("CompleteMultipartUpload");
  root.append_attribute("xmlns") = "http://s3.amazonaws.com/doc/2006-03-01/";
  for (size_t i = 0; i < parts.size(); ++i) {
    pugi::xml_node part = root.append_child("Part");
    if (!parts[i].crc32.empty()) part.append_child("ChecksumCRC32").text() = parts[i].crc32.c_str();
    part.append_child("ETag").text() = parts[i].etag.c_str();
    part.append_child("PartNumber").text() = static_cast<unsigned>(i + 1);
  }
  std::ostringstream text;
  document.save(text, "", pugi::format_raw);
  return std::move(text).str();
}

}  // namespace cairn::kv::internal
