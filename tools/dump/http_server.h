#pragma once
/// A small HTTP/1.1 server for pages and JSON. Only GET and HEAD; nothing is read from files.

#include <chrono>
#include <cstdint>
#include <deque>
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
  std::string path;                            // "/api/steps", decoded
  std::string query;                           // text after "?", encoded
  std::map<std::string, std::string> headers;  // names in lower case; of equal ones, the first

  /// Returns a header, whose name is given in lower case; empty if it is absent.
  std::string_view Header(const std::string& name) const;
  /// Returns a decoded parameter of the query ("?step=10&key=a.b"), or nothing if it is absent.
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
  using Clock = std::chrono::steady_clock;
  struct Connection;

  HttpServer(HttpServerOptions options, Handler handler);
  Result<void> Listen();
  void Wake() const;

  // The threads that call the handler.
  void HandleRequests();
  Connection* TakeRequest() CAIRN_REQUIRES(mutex_);
  HttpResponse Answer(const HttpRequest& request) const;
  bool AcceptsHost(std::string_view host) const;

  // The thread with the sockets.
  void Serve();
  bool TakeAnswers();
  std::list<Connection>::iterator Replaced();
  size_t CountOf(uint32_t peer) const;
  bool DropRequest();
  Clock::time_point AcceptTime();
  bool MakePlace(uint32_t peer);
  void Accept(Clock::time_point now);
  static bool Read(Connection& connection);
  void Advance(Connection& connection, Clock::time_point now);
  static void BeginWriting(Connection& connection, std::string answer, Clock::time_point now);

  HttpServerOptions options_;
  Handler handler_;
  uint16_t port_ = 0;
  kv::FileDescriptor listener_;
  kv::FileDescriptor wake_;  // an eventfd: threads have answered, or the server ends

  // Only the thread with the sockets uses these; in the order in which they were accepted.
  std::list<Connection> connections_;
  Clock::time_point accept_after_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Connection*> requests_ CAIRN_GUARDED_BY(mutex_);
  std::map<uint32_t, size_t> handled_ CAIRN_GUARDED_BY(mutex_);  // requests, by address
  std::vector<Connection*> answered_ CAIRN_GUARDED_BY(mutex_);
  bool stopped_ CAIRN_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace cairn::tools
