// Complete HTTP responses, which libcurl reads from a socket and passes to HttpTransfer.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "kv/storage/s3/internal/curl_library.h"
#include "kv/storage/s3/internal/http_transfer.h"
#include "kv/storage/s3/internal/s3_responses.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

constexpr size_t kTargetBytes = 64;
// The buffer of a socket has more space than this, so that one thread can be server and client.
constexpr size_t kMaxResponseBytes = 32 << 10;

/// A server on a Unix socket without a name in the file system. The client connects before the
/// server accepts, so that one thread can be both.
class Server {
 public:
  Server() : name_("cairn-fuzz-http-" + std::to_string(::getpid())) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    name_.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    CAIRN_FUZZ_CHECK(listener_ >= 0);
    CAIRN_FUZZ_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), length) == 0);
    CAIRN_FUZZ_CHECK(::listen(listener_, 4) == 0);
  }
  const std::string& name() const { return name_; }

  /// Accepts a connection, sends the response, and closes its end.
  void Answer(std::span<const std::byte> response) const {
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    CAIRN_FUZZ_CHECK(connection >= 0);
    const ssize_t sent = ::send(connection, response.data(), response.size(), MSG_DONTWAIT);
    CAIRN_FUZZ_CHECK(sent == static_cast<ssize_t>(response.size()));
    ::shutdown(connection, SHUT_WR);
    open_.push_back(connection);
  }
  /// Closes the connections, whose requests nobody has read.
  void CloseAll() const {
    for (const int connection : open_) ::close(connection);
    open_.clear();
  }

 private:
  const std::string name_;
  const int listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  mutable std::vector<int> open_;
};

/// A request whose response is the input.
struct Exchange {
  const Server& server;
  std::span<const std::byte> response;
};

int OnConnected(void* context, char*, char*, int, int) {
  const auto& exchange = *static_cast<const Exchange*>(context);
  exchange.server.Answer(exchange.response);
  return CURL_PREREQFUNC_OK;
}

HttpResponse Perform(const HttpRequest& request, std::span<const std::byte> response) {
  static const Server server;
  const Exchange exchange{server, response.first(std::min(response.size(), kMaxResponseBytes))};
  HttpResponse result;
  {
    const CurlLibrary& curl = Curl();
    HttpTransfer transfer(request, {});
    CURL* const handle = transfer.handle();
    curl.easy_setopt(handle, CURLOPT_ABSTRACT_UNIX_SOCKET, server.name().c_str());
    curl.easy_setopt(handle, CURLOPT_PREREQFUNCTION, &OnConnected);
    curl.easy_setopt(handle, CURLOPT_PREREQDATA, &exchange);
    curl.easy_setopt(handle, CURLOPT_NOPROXY, "*");
    curl.easy_setopt(handle, CURLOPT_TIMEOUT_MS, 2000L);
    result = transfer.TakeResponse(curl.easy_perform(handle));
  }
  server.CloseAll();
  return result;
}

}  // namespace

void Fuzz(Input input) {
  const uint8_t selector = TakeSelector(input, 4);
  std::array<std::byte, kTargetBytes + 1> target;
  constexpr std::byte kUntouched{0x5a};
  target.fill(kUntouched);
  const std::array<kv::IoSlice, 2> slices = {
      kv::IoSlice{.data = target.data(), .length_bytes = 10},
      kv::IoSlice{.data = target.data() + 10, .length_bytes = kTargetBytes - 10}};
  // An address, so that no name is resolved.
  HttpRequest request{.url = "http://127.0.0.1:1/bucket/key"};
  if (selector == 1) request.target = std::span(target).first(kTargetBytes);
  if (selector == 2) request.slices = slices;
  if (selector == 3) request.method = "HEAD";
  const HttpResponse response = Perform(request, input.rest());

  CAIRN_FUZZ_CHECK(target.back() == kUntouched);
  CAIRN_FUZZ_CHECK(response.target_bytes <= kTargetBytes);
  CAIRN_FUZZ_CHECK(response.body.size() <= input.rest().size());
  for (const auto& [name, value] : response.headers) {
    CAIRN_FUZZ_CHECK(std::ranges::none_of(name, [](char c) { return c >= 'A' && c <= 'Z'; }));
    CAIRN_FUZZ_CHECK(value.size() <= input.rest().size());
  }
  const S3Outcome outcome = JudgeResponse(response, "read", "http://127.0.0.1:1", "us-east-1");
  if (outcome.verdict != S3Verdict::kSuccess) return UseError(outcome.error);
  const S3Outcome of_range = JudgeRange(response, 0, kTargetBytes, "read", "http://127.0.0.1:1");
  if (of_range.verdict != S3Verdict::kSuccess) UseError(of_range.error);
  if (const auto listing = ParseS3Listing(response.body); !listing) UseError(listing.error());
}

}  // namespace cairn::fuzz
