// Statuses and codes of S3
// (https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html).

#include "kv/storage/s3/internal/s3_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "kv/storage/s3/internal/s3_settings.h"
#include "kv/storage/s3/internal/s3_xml.h"

namespace cairn::kv::internal {
namespace {

struct KnownCode {
  std::string_view name;
  S3Verdict verdict;
  ErrorCode code;
  std::string_view advice;
};

constexpr KnownCode kKnownCodes[] = {
    {"NoSuchKey", S3Verdict::kFailed, ErrorCode::kNotFound, ""},
    {"NoSuchBucket", S3Verdict::kFailed, ErrorCode::kNotFound,
     "create the bucket, or correct the address or the endpoint"},
    {"NoSuchUpload", S3Verdict::kFailed, ErrorCode::kNotFound, ""},
    {"PreconditionFailed", S3Verdict::kFailed, ErrorCode::kConflict, ""},
    // Another conditional write of the object is in progress.
    {"ConditionalRequestConflict", S3Verdict::kRetry, ErrorCode::kUnavailable, ""},
    {"OperationAborted", S3Verdict::kRetry, ErrorCode::kUnavailable, ""},
    {"InvalidRange", S3Verdict::kFailed, ErrorCode::kDataLoss, ""},
    {"SlowDown", S3Verdict::kRetry, ErrorCode::kUnavailable,
     "the server limits the rate of requests"},
    {"InternalError", S3Verdict::kRetry, ErrorCode::kUnavailable, ""},
    {"RequestTimeout", S3Verdict::kRetry, ErrorCode::kUnavailable, ""},
    {"ServiceUnavailable", S3Verdict::kRetry, ErrorCode::kUnavailable, ""},
    // The bytes changed on the way to the server; they are still right in memory.
    {"BadDigest", S3Verdict::kRetry, ErrorCode::kUnavailable, ""},
    {"XAmzContentChecksumMismatch", S3Verdict::kRetry, ErrorCode::kUnavailable, ""},
    {"IncompleteBody", S3Verdict::kRetry, ErrorCode::kUnavailable, ""},
    {"ExpiredToken", S3Verdict::kRetryWithOther, ErrorCode::kUnavailable,
     "the credentials have expired; renew them"},
    {"ExpiredTokenException", S3Verdict::kRetryWithOther, ErrorCode::kUnavailable,
     "the credentials have expired; renew them"},
    {"TokenRefreshRequired", S3Verdict::kRetryWithOther, ErrorCode::kUnavailable,
     "the credentials have expired; renew them"},
    {"InvalidToken", S3Verdict::kRetryWithOther, ErrorCode::kUnavailable,
     "check the session token"},
    {"InvalidAccessKeyId", S3Verdict::kRetryWithOther, ErrorCode::kUnavailable,
     "the server does not know this access key; check the credentials and the endpoint"},
    {"SignatureDoesNotMatch", S3Verdict::kFailed, ErrorCode::kUnavailable,
     "check the secret key and the region"},
    {"AccessDenied", S3Verdict::kFailed, ErrorCode::kUnavailable,
     "the credentials lack a permission for this bucket and prefix; a store needs s3:GetObject, "
     "s3:ListBucket and, to write, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload"},
    {"RequestTimeTooSkewed", S3Verdict::kFailed, ErrorCode::kFailedPrecondition,
     "the clock of this machine or of the server is wrong; synchronize it"},
    {"QuotaExceeded", S3Verdict::kFailed, ErrorCode::kResourceExhausted, "free some space"},
    {"EntityTooLarge", S3Verdict::kFailed, ErrorCode::kResourceExhausted, ""},
    {"NotImplemented", S3Verdict::kFailed, ErrorCode::kUnimplemented,
     "the server lacks a function that stores need"},
};

// For responses without a document, such as those to HEAD, and for unknown codes.
KnownCode ByStatus(int status) {
  switch (status) {
    case 404:
      return {"", S3Verdict::kFailed, ErrorCode::kNotFound, ""};
    case 409:
      return {"", S3Verdict::kRetry, ErrorCode::kUnavailable, ""};
    case 412:
      return {"", S3Verdict::kFailed, ErrorCode::kConflict, ""};
    case 416:
      return {"", S3Verdict::kFailed, ErrorCode::kDataLoss, ""};
    case 401:
    case 403:
      return {"", S3Verdict::kFailed, ErrorCode::kUnavailable,
              "check the credentials, and their permissions for this bucket and prefix"};
    case 408:
    case 425:
    case 429:
      return {"", S3Verdict::kRetry, ErrorCode::kUnavailable, ""};
    case 501:
      return {"", S3Verdict::kFailed, ErrorCode::kUnimplemented,
              "the server lacks a function that stores need"};
    case 507:
      return {"", S3Verdict::kFailed, ErrorCode::kResourceExhausted, "free some space"};
    default:
      if (status >= 500) return {"", S3Verdict::kRetry, ErrorCode::kUnavailable, ""};
      return {"", S3Verdict::kFailed, ErrorCode::kUnavailable, ""};
  }
}

KnownCode Look(std::string_view code, int status) {
  const auto* known = std::ranges::find(kKnownCodes, code, &KnownCode::name);
  if (!code.empty() && known != std::end(kKnownCodes)) return *known;
  return ByStatus(status);
}

S3Outcome JudgeFailure(const HttpResponse& response, const std::string& operation,
                       const std::string& endpoint) {
  S3Outcome outcome{.verdict = S3Verdict::kRetry, .may_have_been_performed = true};
  outcome.error.code = ErrorCode::kUnavailable;
  std::string_view advice;
  switch (response.failure) {
    case HttpFailure::kConnect:
      outcome.may_have_been_performed = false;
      advice = "; check the endpoint, the network and the proxy settings";
      break;
    case HttpFailure::kTls:
      outcome = {.verdict = S3Verdict::kFailed};
      outcome.error.code = ErrorCode::kFailedPrecondition;
      advice = "; for a server with its own certificate authority, set AWS_CA_BUNDLE";
      break;
    case HttpFailure::kTooLong:
      outcome.verdict = S3Verdict::kFailed;
      outcome.error.code = ErrorCode::kUnimplemented;
      advice =
          "; the response is longer than what was requested, so the server or a proxy ignores "
          "ranges";
      break;
    case HttpFailure::kCancelled:
      outcome.verdict = S3Verdict::kFailed;
      outcome.error.code = ErrorCode::kCancelled;
      break;
    case HttpFailure::kNoMemory:
      outcome = {.verdict = S3Verdict::kFailed};
      outcome.error.code = ErrorCode::kResourceExhausted;
      break;
    case HttpFailure::kInvalid:
      outcome.verdict = S3Verdict::kFailed;
      outcome.error.code = ErrorCode::kInvalidArgument;
      break;
    default:
      break;
  }
  outcome.error.message = fmt::format("cannot {}: no complete response from {}: {}{}", operation,
                                      endpoint, response.error, advice);
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

}  // namespace

std::string Printable(std::string_view text) {
  std::string printable(text.substr(0, 300));
  std::ranges::replace_if(printable, [](char c) { return static_cast<uint8_t>(c) < 0x20; }, ' ');
  return printable;
}

S3Outcome JudgeResponse(const HttpResponse& response, const std::string& operation,
                        const std::string& endpoint, const std::string& region) {
  if (response.failure != HttpFailure::kNone) return JudgeFailure(response, operation, endpoint);
  const int status = response.status;
  // Some operations begin their response with 200 before they are performed.
  const S3ErrorDocument document = ParseS3Error(response.body);
  const bool is_success = status >= 200 && status < 300;
  const bool is_page = is_success && IsPageOfProxy(response);
  if (is_success && document.code.empty() && !is_page) return {};

  const KnownCode known = Look(document.code, is_success ? 500 : status);
  S3Outcome outcome{.verdict = known.verdict};
  outcome.may_have_been_performed = status >= 500 || status == 408;
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
    outcome.verdict = S3Verdict::kFailed;
    outcome.error.code = ErrorCode::kFailedPrecondition;
    advice = RedirectAdvice(response.Header("location"), endpoint);
  }
  if (IsRegionName(actual_region) && actual_region != region && status != 404) {
    outcome.error.code = ErrorCode::kFailedPrecondition;
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

}  // namespace cairn::kv::internal
