#pragma once
/// A small HTTP/1.1 server for pages and JSON. Only GET and HEAD; nothing is read from files.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "tools/dump/http_message.h"

namespace cairn::tools {

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  /// The Content-Security-Policy.
  std::string policy = "default-src 'none'; frame-ancestors 'none'";
};

struct HttpServerOptions {
  std::string address = "127.0.0.1";  // an IPv4 address to listen on
  uint16_t port = 0;                  // 0: any that is free
  /// Names in Host headers that are accepted besides the loopback address's, and, if `address` is
  /// another one, IPv4 addresses; "*": all. A web page of somebody else whose name resolves to this
  /// machine is thereby refused.
  std::vector<std::string> hosts;
};

/// Whether it is an IPv4 address of the loopback network; "127.evil.example" is not.
bool IsLoopback(std::string_view name);

/// Answers requests until it is destroyed.
class HttpServer {
 public:
  /// Called on several threads at the same time.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  /// kUnavailable: the address cannot be listened on; states why. kConflict: the port is in use.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                   Handler handler);
  /// Waits for the requests that are being handled.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::tools
