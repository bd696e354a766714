#pragma once
/// An HTTP server at 127.0.0.1 whose responses a test chooses, including wrong ones.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kv/base/mutex.h"

namespace cairn::testing {

struct HttpCall {
  std::string method;
  std::string target;                          // "/bucket/key?query"
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  std::string Header(const std::string& name) const;
  std::string Path() const { return target.substr(0, target.find('?')); }
  /// Returns the value of a parameter, decoded; nothing if it is absent.
  std::optional<std::string> Parameter(const std::string& name) const;
};

struct HttpReply {
  int status = 200;
  std::vector<std::string> headers = {};  // "Name: value"; Content-Length is added
  std::string body = "";
  /// If set, the connection is closed after so many bytes of the body.
  std::optional<size_t> cut_after_bytes = std::nullopt;
  bool cut_at_once = false;                     // closes the connection without a response
  std::chrono::milliseconds pause_per_byte{0};  // of the body
  /// Waits first, but not longer than the server exists.
  std::chrono::milliseconds delay{0};
};

/// Each connection has a thread. The handler may run on many threads at once.
class HttpServer {
 public:
  using Handler = std::function<HttpReply(const HttpCall&)>;
  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Returns "http://127.0.0.1:PORT".
  std::string endpoint() const;
  /// The next request with a body is cut after `bytes` of the body have been received.
  void CutNextRequestAfter(size_t bytes) { cut_request_after_ = static_cast<int64_t>(bytes); }
  int connection_count() const { return connection_count_; }

 private:
  void Accept();
  void Serve(int fd);
  /// Reads one request. Nothing: the connection has ended.
  std::optional<HttpCall> ReadCall(int fd, std::string* buffer);
  /// Sends a reply. Returns whether the connection can be used again.
  bool Send(int fd, const HttpCall& call, const HttpReply& reply);

  const Handler handler_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> cut_request_after_ = -1;
  std::atomic<int> connection_count_ = 0;
  Mutex mutex_;
  std::set<int> connections_ CAIRN_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ CAIRN_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace cairn::testing
