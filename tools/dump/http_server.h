#pragma once
/// A small HTTP/1.1 server for pages and JSON. Only GET and HEAD; nothing is read from files.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/io/file_descriptor.h"

namespace cairn::tools {

/// The head of a request.
struct HttpRequest {
  std::string method;
  std::string path;                               // "/api/steps", decoded
  std::map<std::string, std::string> parameters;  // of the query; values are decoded
  std::map<std::string, std::string> headers;     // names in lower case; of equal ones, the first

  /// Returns a header, whose name is given in lower case; empty if it is absent.
  std::string_view Header(const std::string& name) const;
  /// Returns a parameter ("?step=10&key=a.b"), or nothing if it is absent.
  std::optional<std::string> Parameter(const std::string& name) const;
};

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

  uint16_t port() const { return port_; }

 private:
  struct Connection;

  HttpServer(HttpServerOptions options, Handler handler);
  Result<void> Listen();

  // The thread that accepts connections.
  void Accept();
  void MakePlace() CAIRN_REQUIRES(mutex_);

  // The thread of a connection.
  void Serve(std::list<Connection>::iterator connection);
  std::optional<std::string> Respond(Connection& connection);
  bool HasTurn(uint32_t peer) const CAIRN_REQUIRES(mutex_);
  HttpResponse Answer(const HttpRequest& request) const;
  bool AcceptsHost(std::string_view host) const;

  HttpServerOptions options_;
  Handler handler_;
  uint16_t port_ = 0;
  kv::FileDescriptor listener_;

  Mutex mutex_;
  CondVar changed_;
  std::list<Connection> connections_ CAIRN_GUARDED_BY(mutex_);  // each has a thread
  bool stopped_ CAIRN_GUARDED_BY(mutex_) = false;
  std::thread acceptor_;
};

}  // namespace cairn::tools
