// An HTTP server on CivetWeb. Each connection has one request, on one thread of a pool.

#include "tools/dump/http_server.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <thread>

#include "tools/common/json.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr size_t kMaxParameterBytes = size_t{1} << 18;
constexpr int kMethodNotAllowed = 405;
constexpr int kForbidden = 403;

std::string_view StatusText(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case kForbidden:
      return "Forbidden";
    case 404:
      return "Not Found";
    case kMethodNotAllowed:
      return "Method Not Allowed";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

/// The name in a Host header, without the port: "localhost:8000", "[::1]:8000".
std::string_view HostName(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool IsIpv4(std::string_view name) {
  in_addr address = {};
  return inet_pton(AF_INET, std::string(name).c_str(), &address) == 1;
}

bool EqualWithoutCase(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, LowerAscii, LowerAscii);
}

HttpResponse Refusal(int status, std::string message) {
  return {.status = status,
          .body = Json({{"error", {{"code", StatusText(status)}, {"message", message}}}}).Line()};
}

}  // namespace

bool IsLoopback(std::string_view name) { return name.starts_with("127.") && IsIpv4(name); }

struct HttpServer::Impl {
  HttpServerOptions options;
  Handler handler;
  mg_context* context = nullptr;
  uint16_t port = 0;
  std::mutex mutex;
  std::string message;  // of the library, while it starts

  ~Impl() {
    if (context == nullptr) return;
    // The library looks every 2 s whether it is to stop, and whenever somebody connects.
    std::jthread waker([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        Connect();
      }
    });
    mg_stop(context);
  }

  void Connect() const {
    const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in target = {};
    target.sin_family = AF_INET;
    target.sin_port = htons(port);
    if (inet_pton(AF_INET, options.address.c_str(), &target.sin_addr) == 1) {
      // Without a connection, the end only takes longer.
      (void)connect(descriptor, reinterpret_cast<const sockaddr*>(&target), sizeof(target));
    }
    if (descriptor >= 0) close(descriptor);
  }

  bool AcceptsHost(const char* header) const {
    if (std::ranges::count(options.hosts, "*") > 0) return true;
    if (header == nullptr) return false;
    const std::string_view name = HostName(header);
    if (EqualWithoutCase(name, "localhost") || name == "[::1]" || IsLoopback(name)) return true;
    // Nobody can make an address resolve to this machine.
    if (!IsLoopback(options.address) && IsIpv4(name)) return true;
    return std::ranges::any_of(
        options.hosts, [&](const std::string& host) { return EqualWithoutCase(name, host); });
  }

  /// Browsers state whether a page of another site makes the request. Its links may lead to the
  /// page, but it gets nothing else, also not in a frame.
  static bool IsOfOtherSite(const mg_connection* connection, const mg_request_info& info) {
    const auto header = [&](const char* name) {
      const char* value = mg_get_header(connection, name);
      return std::string_view(value == nullptr ? "" : value);
    };
    const std::string_view site = header("Sec-Fetch-Site");
    if (site.empty() || site == "same-origin" || site == "none") return false;
    const bool is_link = header("Sec-Fetch-Mode") == "navigate" &&
                         header("Sec-Fetch-Dest") == "document" &&
                         std::string_view(info.local_uri == nullptr ? "" : info.local_uri) == "/";
    return !is_link;
  }

  HttpResponse Answer(const mg_connection* connection, const mg_request_info& info) const {
    const std::string_view method = info.request_method;
    if (method != "GET" && method != "HEAD") {
      return Refusal(kMethodNotAllowed, "kv-dump serve only reads: use GET or HEAD");
    }
    const char* host = mg_get_header(connection, "Host");
    if (!AcceptsHost(host)) {
      const std::string name(HostName(host == nullptr ? "" : host));
      return Refusal(kForbidden, fmt::format("kv-dump serve does not accept the host {}; if it "
                                             "is this machine, add --allow-host {}",
                                             EscapeText(name), ShellWord(name)));
    }
    if (IsOfOtherSite(connection, info)) {
      return Refusal(kForbidden, "kv-dump serve does not answer the pages of other sites");
    }
    return handler({.path = info.local_uri == nullptr ? "" : info.local_uri,
                    .query = info.query_string == nullptr ? "" : info.query_string});
  }

  static int OnRequest(mg_connection* connection) {
    const mg_request_info* info = mg_get_request_info(connection);
    const auto* impl = static_cast<const Impl*>(info->user_data);
    const HttpResponse response = impl->Answer(connection, *info);
    const std::string head = fmt::format(
        "HTTP/1.1 {} {}\r\n"
        "Content-Type: {}; charset=utf-8\r\n"
        "Content-Length: {}\r\n"
        "Content-Security-Policy: {}\r\n"
        "Cache-Control: no-store\r\n"
        "Cross-Origin-Resource-Policy: same-origin\r\n"
        "Referrer-Policy: no-referrer\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "{}"
        "Connection: close\r\n\r\n",
        response.status, StatusText(response.status), response.content_type, response.body.size(),
        response.policy, response.status == kMethodNotAllowed ? "Allow: GET, HEAD\r\n" : "");
    // If the client has gone, nobody is left who could be told.
    if (mg_write(connection, head.data(), head.size()) > 0 &&
        std::string_view(info->request_method) != "HEAD") {
      (void)mg_write(connection, response.body.data(), response.body.size());
    }
    return response.status;
  }

  static int OnMessage(const mg_connection* connection, const char* message) {
    auto* impl = static_cast<Impl*>(mg_get_user_data(mg_get_context(connection)));
    if (impl != nullptr) {
      const std::scoped_lock lock(impl->mutex);
      if (impl->message.empty()) impl->message = message;
    }
    return 1;  // not written anywhere
  }
};

std::optional<std::string> HttpRequest::Parameter(const std::string& name) const {
  std::string value(std::min(query.size() + 1, kMaxParameterBytes), '\0');
  const int length =
      mg_get_var(query.data(), query.size(), name.c_str(), value.data(), value.size());
  if (length < 0) return std::nullopt;
  value.resize(static_cast<size_t>(length));
  return value;
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return impl_->port; }

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                      Handler handler) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->handler = std::move(handler);
  const std::string place = fmt::format("{}:{}", options.address, options.port);
  // Browsers keep idle connections, each of which takes a thread until it times out.
  const std::array<const char*, 15> settings = {"listening_ports",
                                                place.c_str(),
                                                "num_threads",
                                                "64",
                                                "request_timeout_ms",
                                                "10000",
                                                "max_request_size",
                                                "262144",
                                                "enable_auth_domain_check",
                                                "no",
                                                "enable_directory_listing",
                                                "no",
                                                "tcp_nodelay",
                                                "1",
                                                nullptr};
  mg_callbacks callbacks = {};
  callbacks.begin_request = &Impl::OnRequest;
  callbacks.log_message = &Impl::OnMessage;
  impl->context = mg_start(&callbacks, impl.get(), const_cast<const char**>(settings.data()));
  if (impl->context == nullptr) {
    const bool is_used = impl->message.find("Address already in use") != std::string::npos;
    return Fail(is_used ? ErrorCode::kConflict : ErrorCode::kUnavailable,
                fmt::format("cannot listen on {}: {}", place,
                            is_used                 ? "the port is in use"
                            : impl->message.empty() ? "the address is not one of this machine"
                                                    : EscapeText(impl->message)));
  }
  mg_server_port port = {};
  if (mg_get_server_ports(impl->context, 1, &port) != 1) {
    return Fail(ErrorCode::kInternal, "the server has no port");
  }
  impl->port = static_cast<uint16_t>(port.port);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace cairn::tools
