#pragma once
/// One HTTP request on a libcurl handle.

#include <curl/curl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "kv/storage/s3/internal/curl_library.h"
#include "kv/storage/s3/internal/http_request.h"

namespace cairn::kv::internal {

struct CurlHandleDeleter {
  void operator()(CURL* handle) const { Curl().easy_cleanup(handle); }
};
using CurlHandle = std::unique_ptr<CURL, CurlHandleDeleter>;

/// Configures a handle for a request, and collects the response. Immovable, because the handle has
/// its address. Threads: one.
class HttpTransfer {
 public:
  /// `handle` is new or was reset.
  HttpTransfer(CurlHandle handle, HttpRequest request, const HttpOptions& options);
  HttpTransfer(const HttpTransfer&) = delete;
  HttpTransfer& operator=(const HttpTransfer&) = delete;
  ~HttpTransfer();

  CURL* handle() const { return handle_.get(); }
  /// Returns an error if libcurl refused an option or has no memory. The transfer must not be begun
  /// then: it would lack the condition of a write, or send the secret instead of a signature.
  CURLcode setup() const { return setup_; }
  /// Returns the response after libcurl has finished with `code`.
  HttpResponse TakeResponse(CURLcode code);
  /// Returns the handle for another transfer.
  CurlHandle TakeHandle();

 private:
  template <typename Value>
  void Set(CURLoption option, Value value);
  void Configure(const HttpOptions& options);
  void ConfigureMethod();
  void ConfigureLimits(const HttpOptions& options);

  static size_t OnSend(char* target, size_t size, size_t count, void* self);
  static int OnSeek(void* self, curl_off_t offset, int origin);
  static size_t OnReceive(char* bytes, size_t size, size_t count, void* self);
  static size_t OnHeader(char* bytes, size_t size, size_t count, void* self);
  bool Receive(std::string_view bytes);
  bool FillTarget(std::string_view bytes);
  void AddHeader(std::string_view line);

  CurlHandle handle_;
  CURLcode setup_ = CURLE_OK;
  const HttpRequest request_;
  const IoSlice target_;               // the request's target, if it has no slices
  std::span<const IoSlice> unfilled_;  // the first one may be filled in part
  uint64_t filled_bytes_ = 0;          // filled bytes of the first one
  curl_slist* header_list_ = nullptr;
  uint64_t sent_bytes_ = 0;
  uint64_t header_bytes_ = 0;  // received
  bool too_long_ = false;
  bool has_no_memory_ = false;
  HttpResponse response_;
  char error_text_[CURL_ERROR_SIZE] = {};
};

/// Performs one request on the calling thread without a proxy, for services that supply
/// credentials: a proxy would see the secrets.
HttpResponse PerformHttpRequest(const HttpRequest& request, const HttpOptions& options);

}  // namespace cairn::kv::internal
