// Options of libcurl, and its callbacks.

#include "kv/storage/s3/internal/http_transfer.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <random>

#include "kv/base/catch_exhaustion.h"

namespace cairn::kv::internal {
namespace {

constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{5'000};

// Lists of objects have up to about 1 MiB.
constexpr size_t kMaxBodyBytes = 16 << 20;
constexpr size_t kMaxHeaderBytes = 256 << 10;
constexpr long kReceiveBufferBytes = 512 << 10;  // the most that libcurl 7.88 accepts
constexpr long kSendBufferBytes = 1 << 20;

bool HasBody(const HttpRequest& request) {
  return request.method == "PUT" || request.method == "POST";
}

char ToLower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::string_view HttpResponse::Header(std::string_view name) const {
  const auto header = std::ranges::find(headers, name, [](const auto& pair) { return pair.first; });
  return header == headers.end() ? std::string_view() : std::string_view(header->second);
}

HttpTransfer::HttpTransfer(HttpRequest request, const HttpOptions& options)
    : request_(std::move(request)),
      target_{.data = request_.target.data(), .length_bytes = request_.target.size()},
      unfilled_(request_.slices) {
  if (!request_.target.empty()) unfilled_ = {&target_, 1};
  if (setup_ == CURLE_OK) Configure(options);
}

HttpTransfer::~HttpTransfer() {
  curl_.easy_cleanup(handle_);  // before the list, which it uses
  curl_.slist_free_all(header_list_);
}

template <typename Value>
void HttpTransfer::Set(CURLoption option, Value value) {
  const CURLcode code = curl_.easy_setopt(handle_, option, value);
  if (code != CURLE_OK) setup_ = code;
}

void HttpTransfer::Configure(const HttpOptions& options) {
  Set(CURLOPT_NOSIGNAL, 1L);
  Set(CURLOPT_URL, request_.url.c_str());
  Set(CURLOPT_PROTOCOLS_STR, "http,https");
  Set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  Set(CURLOPT_PATH_AS_IS, 1L);
  Set(CURLOPT_ERRORBUFFER, error_text_);
  Set(CURLOPT_USERAGENT, "cairn");
  Set(CURLOPT_WRITEFUNCTION, &HttpTransfer::OnReceive);
  Set(CURLOPT_WRITEDATA, this);
  Set(CURLOPT_HEADERFUNCTION, &HttpTransfer::OnHeader);
  Set(CURLOPT_HEADERDATA, this);
  if (!options.ca_bundle.empty()) Set(CURLOPT_CAINFO, options.ca_bundle.c_str());
  ConfigureMethod();
  ConfigureLimits(options);
  for (const std::string& header : request_.headers) {
    curl_slist* const longer = curl_.slist_append(header_list_, header.c_str());
    if (longer == nullptr) setup_ = CURLE_OUT_OF_MEMORY;
    if (longer != nullptr) header_list_ = longer;
  }
  // libcurl announces bodies of more than 1 MiB with "Expect: 100-continue", and would wait up to a
  // second for the answer. To switch the header off is not possible: libcurl 7.88 signs a header
  // "Expect:" that it does not send.
  Set(CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
  Set(CURLOPT_HTTPHEADER, header_list_);
  if (request_.signature) {
    Set(CURLOPT_AWS_SIGV4, request_.signature->scope.c_str());
    Set(CURLOPT_USERNAME, request_.signature->access_key_id.c_str());
    Set(CURLOPT_PASSWORD, request_.signature->secret_access_key.c_str());
  }
}

void HttpTransfer::ConfigureMethod() {
  if (request_.method == "HEAD") {
    Set(CURLOPT_NOBODY, 1L);
  } else if (HasBody(request_)) {
    Set(CURLOPT_UPLOAD, 1L);
    Set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request_.body.size()));
    Set(CURLOPT_READFUNCTION, &HttpTransfer::OnSend);
    Set(CURLOPT_READDATA, this);
    Set(CURLOPT_SEEKFUNCTION, &HttpTransfer::OnSeek);
    Set(CURLOPT_SEEKDATA, this);
    Set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
    if (request_.body.size() >= static_cast<size_t>(kSendBufferBytes)) {
      Set(CURLOPT_UPLOAD_BUFFERSIZE, kSendBufferBytes);
    }
  } else {
    Set(CURLOPT_HTTPGET, 1L);
    if (request_.method != "GET") {
      Set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
    }
    uint64_t target_bytes = 0;
    for (const IoSlice& slice : unfilled_) target_bytes += slice.length_bytes;
    if (target_bytes >= static_cast<uint64_t>(kReceiveBufferBytes)) {
      Set(CURLOPT_BUFFERSIZE, kReceiveBufferBytes);
    }
  }
}

void HttpTransfer::ConfigureLimits(const HttpOptions& options) {
  using std::chrono::milliseconds;
  Set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
  Set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  Set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.stall_timeout.count()));
  if (request_.deadline == std::chrono::steady_clock::time_point::max()) return;
  const auto left = std::chrono::duration_cast<milliseconds>(request_.deadline -
                                                             std::chrono::steady_clock::now());
  // 0 would mean no limit.
  Set(CURLOPT_TIMEOUT_MS, std::max<long>(1, static_cast<long>(left.count())));
}

int HttpTransfer::Status() const {
  long status = 0;
  curl_.easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

HttpResponse HttpTransfer::TakeResponse(CURLcode code) {
  auto collected = CatchExhaustion("a response", [&]() -> Result<void> {
    response_.failure = refusal_ != CURLE_OK ? refusal_ : code;
    if (response_.failure != CURLE_OK) {
      response_.error = error_text_[0] != 0 ? error_text_ : curl_.easy_strerror(code);
    }
    if (setup_ != CURLE_OK) return {};
    response_.status = Status();
    curl_header* header = nullptr;
    while ((header = curl_.easy_nextheader(handle_, CURLH_HEADER, /*request=*/-1, header))) {
      std::string name(header->name);
      std::ranges::transform(name, name.begin(), ToLower);
      response_.headers.emplace_back(std::move(name), header->value);
    }
    return {};
  });
  if (!collected) {
    response_.failure = CURLE_OUT_OF_MEMORY;
    response_.error = std::move(collected).error().message;
  }
  return std::move(response_);
}

size_t HttpTransfer::OnSend(char* target, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<HttpTransfer*>(self);
  const std::span<const std::byte> rest = transfer.request_.body.subspan(transfer.sent_bytes_);
  const size_t length = std::min(rest.size(), size * count);
  if (length > 0) std::memcpy(target, rest.data(), length);
  transfer.sent_bytes_ += length;
  return length;
}

// libcurl sends the body again if a connection that was kept open turns out to be closed.
int HttpTransfer::OnSeek(void* self, curl_off_t offset, int origin) {
  auto& transfer = *static_cast<HttpTransfer*>(self);
  if (origin != SEEK_SET || offset < 0 ||
      static_cast<uint64_t>(offset) > transfer.request_.body.size()) {
    return CURL_SEEKFUNC_FAIL;
  }
  transfer.sent_bytes_ = static_cast<uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

size_t HttpTransfer::OnReceive(char* bytes, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<HttpTransfer*>(self);
  try {
    if (transfer.Receive({bytes, size * count})) return size * count;
    transfer.refusal_ = CURLE_FILESIZE_EXCEEDED;
  } catch (const std::bad_alloc&) {
    transfer.refusal_ = CURLE_OUT_OF_MEMORY;
  }
  return CURL_WRITEFUNC_ERROR;
}

bool HttpTransfer::Receive(std::string_view bytes) {
  const bool has_target = !request_.target.empty() || !request_.slices.empty();
  const int status = Status();
  if (has_target && (status == 200 || status == 206)) return FillTarget(bytes);
  if (bytes.size() > kMaxBodyBytes - response_.body.size()) return false;
  response_.body += bytes;
  return true;
}

bool HttpTransfer::FillTarget(std::string_view bytes) {
  while (!bytes.empty()) {
    if (unfilled_.empty()) return false;
    const IoSlice& slice = unfilled_.front();
    const size_t length = std::min(bytes.size(), slice.length_bytes - filled_bytes_);
    if (slice.data != nullptr) std::memcpy(slice.data + filled_bytes_, bytes.data(), length);
    bytes.remove_prefix(length);
    filled_bytes_ += length;
    response_.target_bytes += length;
    if (filled_bytes_ < slice.length_bytes) return true;
    unfilled_ = unfilled_.subspan(1);
    filled_bytes_ = 0;
  }
  return true;
}

// libcurl collects the headers. Not all of its versions limit how many.
size_t HttpTransfer::OnHeader(char*, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<HttpTransfer*>(self);
  transfer.header_bytes_ += size * count;
  if (transfer.header_bytes_ <= kMaxHeaderBytes) return size * count;
  transfer.refusal_ = CURLE_FILESIZE_EXCEEDED;
  return CURL_WRITEFUNC_ERROR;
}

HttpResponse PerformHttpRequest(const HttpRequest& request, const HttpOptions& options) {
  HttpTransfer transfer(request, options);
  if (transfer.setup() != CURLE_OK) return transfer.TakeResponse(transfer.setup());
  Curl().easy_setopt(transfer.handle(), CURLOPT_NOPROXY, "*");
  return transfer.TakeResponse(Curl().easy_perform(transfer.handle()));
}

std::chrono::milliseconds PauseBefore(int attempt) {
  static thread_local std::minstd_rand random(std::random_device{}());
  const auto whole = std::min(kLongestPause, kFirstPause * (1 << std::min(attempt, 10)));
  return std::chrono::milliseconds(
      std::uniform_int_distribution<int64_t>(whole.count() / 2, whole.count())(random));
}

}  // namespace cairn::kv::internal
