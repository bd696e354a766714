#pragma once
/// HTTP requests and their responses, and one request on a libcurl handle. The proxy variables of
/// the environment (HTTPS_PROXY, NO_PROXY, ...) apply, as libcurl defines them. Redirects are not
/// followed, and statuses such as 503 are answers like others.

#include <curl/curl.h>

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
#include "kv/storage/s3/internal/curl_library.h"

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
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

struct HttpResponse {
  /// Why there is no complete response. Also CURLE_FILESIZE_EXCEEDED: it does not fit.
  /// CURLE_ABORTED_BY_CALLBACK: cancelled. CURLE_OUT_OF_MEMORY: or no thread, so that the request
  /// was not begun.
  CURLcode failure = CURLE_OK;
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

/// A libcurl handle with a request, which collects the response. Immovable, because the handle has
/// its address. Threads: one.
class HttpTransfer {
 public:
  HttpTransfer(HttpRequest request, const HttpOptions& options);
  HttpTransfer(const HttpTransfer&) = delete;
  HttpTransfer& operator=(const HttpTransfer&) = delete;
  ~HttpTransfer();

  CURL* handle() const { return handle_; }
  /// Returns an error if libcurl refused an option or has no memory. The transfer must not be begun
  /// then: it would lack the condition of a write, or send the secret instead of a signature.
  CURLcode setup() const { return setup_; }
  /// Returns the response after libcurl has finished with `code`.
  HttpResponse TakeResponse(CURLcode code);

 private:
  template <typename Value>
  void Set(CURLoption option, Value value);
  void Configure(const HttpOptions& options);
  void ConfigureMethod();
  void ConfigureLimits(const HttpOptions& options);

  static size_t OnSend(char* target, size_t size, size_t count, void* self);
  static int OnSeek(void* self, curl_off_t offset, int origin);
  static size_t OnReceive(char* bytes, size_t size, size_t count, void* self);
  static size_t OnHeader(char* line, size_t size, size_t count, void* self);
  /// Returns 0 before there is a response.
  int Status() const;
  bool Receive(std::string_view bytes);
  bool FillTarget(std::string_view bytes);

  const CurlLibrary& curl_ = Curl();
  CURL* const handle_ = curl_.easy_init();
  CURLcode setup_ = handle_ == nullptr ? CURLE_OUT_OF_MEMORY : CURLE_OK;
  const HttpRequest request_;
  const IoSlice target_;               // the request's target, if it has no slices
  std::span<const IoSlice> unfilled_;  // the first one may be filled in part
  uint64_t filled_bytes_ = 0;          // filled bytes of the first one
  curl_slist* header_list_ = nullptr;
  uint64_t sent_bytes_ = 0;
  uint64_t header_bytes_ = 0;    // received
  CURLcode refusal_ = CURLE_OK;  // why a callback has ended the transfer
  HttpResponse response_;
  char error_text_[CURL_ERROR_SIZE] = {};
};

/// Performs one request on the calling thread without a proxy, for services that supply
/// credentials: a proxy would see the secrets.
HttpResponse PerformHttpRequest(const HttpRequest& request, const HttpOptions& options);

/// Returns how long to wait before a request that has failed `attempt` + 1 times is sent again:
/// half of 50 ms * 2^attempt to all of it, at most 5 s. Random, so that many processes do not ask
/// again together.
std::chrono::milliseconds PauseBefore(int attempt);

}  // namespace cairn::kv::internal
