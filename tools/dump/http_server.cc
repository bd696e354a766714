// An HTTP server: each connection has a thread and one request.
//
// A connection passes these steps:
//   1. The head of the request arrives, within kHeadTime in total.
//   2. It waits for its turn, and its thread calls the handler.
//   3. The answer leaves, at kMinBytesPerSecond at least, and what the client still sends is
//      discarded. A close with unread bytes would reset the connection, and the client could lose
//      the answer.
// If there are kMaxConnections, the next one replaces one that is not being handled: of the address
// that has the most, the one that has waited longest for its client or its turn, and kMinTime at
// least. A client that opens very many therefore loses its own ones first, and whoever sends a
// request at once is answered.

#include "tools/dump/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <iterator>
#include <tuple>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "tools/common/json.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

using kv::FileDescriptor;
using kv::RetryInterrupted;

constexpr size_t kMaxConnections = 256;
constexpr ptrdiff_t kMaxHandled = 16;        // requests that are handled at the same time,
constexpr ptrdiff_t kMaxHandledOfPeer = 12;  // and of one address
constexpr size_t kMaxHeadBytes = size_t{1} << 18;
constexpr auto kMinTime = std::chrono::milliseconds(500);  // a client may be slow to begin
constexpr auto kHeadTime = std::chrono::seconds(10);
constexpr auto kDrainTime = std::chrono::seconds(2);
constexpr uint64_t kMinBytesPerSecond = uint64_t{1} << 16;
constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // if there are no descriptors
constexpr std::string_view kHeadEnd = "\r\n\r\n";

constexpr int kBadRequest = 400;
constexpr int kForbidden = 403;
constexpr int kMethodNotAllowed = 405;
constexpr int kInternalError = 500;

// --- messages, which are treated as hostile input

/// Removes and returns the text up to the first separator, which is removed, too.
std::string_view Take(std::string_view& text, std::string_view separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(std::min(end + separator.size(), text.size()));
  return taken;
}

/// Replaces "%41" by "A", and, if `plus_is_space`, "+" by " ". Other text is unchanged.
std::string DecodePercent(std::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const char* const digits = text.data() + i + 1;
    uint8_t byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += plus_is_space && text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

/// Returns what the lines up to and including the empty one state, or nothing if they are not the
/// head of a request of HTTP/1.0 or 1.1 for a path.
std::optional<HttpRequest> ParseHttpRequest(std::string_view lines) {
  constexpr std::string_view kLineEnd = "\r\n";
  std::string_view version = Take(lines, kLineEnd);
  HttpRequest request{.method = std::string(Take(version, " "))};
  std::string_view target = Take(version, " ");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return std::nullopt;
  if (!target.starts_with('/')) return std::nullopt;
  request.path = DecodePercent(Take(target, "?"), /*plus_is_space=*/false);
  while (!target.empty()) {
    std::string_view value = Take(target, "&");
    const std::string name(Take(value, "="));
    request.parameters.emplace(name, DecodePercent(value, /*plus_is_space=*/true));
  }
  for (std::string_view line = Take(lines, kLineEnd); !line.empty(); line = Take(lines, kLineEnd)) {
    // A line that begins with a space would continue the one before it, which is obsolete.
    if (!line.contains(':') || line.front() == ':' || line.front() == ' ') return std::nullopt;
    std::string name(Take(line, ":"));
    std::ranges::transform(name, name.begin(), LowerAscii);
    request.headers.emplace(std::move(name), Trim(line));
  }
  return request;
}

/// Returns the name in a Host header, without the port: "localhost:8000", "[::1]:8000".
std::string_view HostName(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

std::string_view HttpStatusText(int status) {
  static const std::map<int, std::string_view> kTexts = {
      {200, "OK"},        {400, "Bad Request"},        {403, "Forbidden"},
      {404, "Not Found"}, {405, "Method Not Allowed"}, {503, "Service Unavailable"}};
  const auto found = kTexts.find(status);
  return found == kTexts.end() ? "Internal Server Error" : found->second;
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
          .body = JsonLine({{"error", {{"code", HttpStatusText(status)}, {"message", message}}}})};
}

std::string ResponseText(const HttpResponse& response, bool has_body) {
  std::string text = fmt::format(
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
      response.status, HttpStatusText(response.status), response.content_type, response.body.size(),
      response.policy, response.status == kMethodNotAllowed ? "Allow: GET, HEAD\r\n" : "");
  if (has_body) text += response.body;
  return text;
}

/// Browsers state whether a page of another site makes the request. Its links may lead to the page,
/// but it gets nothing else, also not in a frame.
bool IsOfOtherSite(const HttpRequest& request) {
  const std::string_view site = request.Header("sec-fetch-site");
  if (site.empty() || site == "same-origin" || site == "none") return false;
  return request.Header("sec-fetch-mode") != "navigate" ||
         request.Header("sec-fetch-dest") != "document" || request.path != "/";
}

Error ListenError(const std::string& place, int error_number) {
  const bool is_used = error_number == EADDRINUSE;
  return {.code = is_used ? ErrorCode::kConflict : ErrorCode::kUnavailable,
          .message = fmt::format("cannot listen on {}: {}", place,
                                 is_used                         ? "the port is in use"
                                 : error_number == EADDRNOTAVAIL ? "the address is not one of "
                                                                   "this machine"
                                                                 : std::strerror(error_number))};
}

// --- sockets

using Clock = std::chrono::steady_clock;

/// Waits until the socket is ready. Returns false at the deadline.
bool WaitFor(int socket, short events, Clock::time_point deadline) {
  pollfd polled = {.fd = socket, .events = events, .revents = 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  const int wait_ms = static_cast<int>(std::max<int64_t>(0, left.count()));
  return RetryInterrupted([&] { return ::poll(&polled, 1, wait_ms); }) > 0;
}

/// Appends what arrives next. Returns false if the client has left, or at the deadline.
bool Receive(int socket, Clock::time_point deadline, std::string& received) {
  std::array<char, 16384> buffer;
  if (!WaitFor(socket, POLLIN, deadline)) return false;
  const ssize_t count =
      RetryInterrupted([&] { return ::recv(socket, buffer.data(), buffer.size(), 0); });
  if (count > 0) received.append(buffer.data(), static_cast<size_t>(count));
  return count > 0 || (count < 0 && errno == EAGAIN);
}

/// Returns the head of a request with its empty line, or more than kMaxHeadBytes of it; nothing if
/// it does not arrive.
std::optional<std::string> ReceiveHead(int socket) {
  const auto deadline = Clock::now() + kHeadTime;
  std::string head;
  for (size_t begin = 0; head.size() <= kMaxHeadBytes;) {
    if (!Receive(socket, deadline, head)) return std::nullopt;
    const size_t end = head.find(kHeadEnd, begin);
    if (end != std::string::npos) return head.substr(0, end + kHeadEnd.size());
    begin = std::max(head.size(), kHeadEnd.size()) - kHeadEnd.size();
  }
  return head;
}

/// Sends all of the text, unless the client is too slow or has left.
void Send(int socket, std::string_view text) {
  const auto deadline =
      Clock::now() + kHeadTime + std::chrono::seconds(text.size() / kMinBytesPerSecond);
  while (!text.empty() && WaitFor(socket, POLLOUT, deadline)) {
    const ssize_t count =
        RetryInterrupted([&] { return ::send(socket, text.data(), text.size(), MSG_NOSIGNAL); });
    if (count < 0 && errno != EAGAIN) return;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(0, count)));
  }
}

/// Ends the answer, and discards what the client still sends.
void Drain(int socket) {
  ::shutdown(socket, SHUT_WR);
  const auto deadline = Clock::now() + kDrainTime;
  for (std::string ignored; Receive(socket, deadline, ignored);) ignored.clear();
}

}  // namespace

std::string_view HttpRequest::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

std::optional<std::string> HttpRequest::Parameter(const std::string& name) const {
  const auto found = parameters.find(name);
  return found == parameters.end() ? std::nullopt : std::optional(found->second);
}

bool IsLoopback(std::string_view name) { return name.starts_with("127.") && IsIpv4(name); }

struct HttpServer::Connection {
  FileDescriptor socket;
  uint32_t peer = 0;  // its IPv4 address
  // The mutex of the server guards these.
  bool is_handled = false;                       // its thread calls the handler
  Clock::time_point waits_since = Clock::now();  // if not
  bool is_replaced = false;                      // it is not handled any more
};

HttpServer::HttpServer(HttpServerOptions options, Handler handler)
    : options_(std::move(options)), handler_(std::move(handler)) {}

HttpServer::~HttpServer() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    ::shutdown(listener_.get(), SHUT_RDWR);  // ends the call of accept
    for (Connection& connection : connections_) ::shutdown(connection.socket.get(), SHUT_RDWR);
    changed_.NotifyAll();
    while (!connections_.empty()) changed_.Wait(mutex_);
  }
  if (acceptor_.joinable()) acceptor_.join();
}

// --- the threads of connections

bool HttpServer::AcceptsHost(std::string_view host) const {
  if (std::ranges::count(options_.hosts, "*") > 0) return true;
  const std::string_view name = HostName(host);
  if (EqualWithoutCase(name, "localhost") || name == "[::1]" || IsLoopback(name)) return true;
  // Nobody can make an address resolve to this machine.
  if (!IsLoopback(options_.address) && IsIpv4(name)) return true;
  return !name.empty() && std::ranges::any_of(options_.hosts, [&](const std::string& accepted) {
    return EqualWithoutCase(name, accepted);
  });
}

HttpResponse HttpServer::Answer(const HttpRequest& request) const {
  if (request.method != "GET" && request.method != "HEAD") {
    return Refusal(kMethodNotAllowed, "kv-dump serve only reads: use GET or HEAD");
  }
  const std::string_view host = request.Header("host");
  if (!AcceptsHost(host)) {
    const std::string name(HostName(host));
    return Refusal(kForbidden, fmt::format("kv-dump serve does not accept the host {}; if it is "
                                           "this machine, add --allow-host {}",
                                           EscapeText(name), ShellWord(name)));
  }
  if (IsOfOtherSite(request)) {
    return Refusal(kForbidden, "kv-dump serve does not answer the pages of other sites");
  }
  try {
    return handler_(request);
  } catch (const std::exception& error) {
    return Refusal(kInternalError, EscapeText(error.what()));
  }
}

/// Returns whether a request of the address can be handled, so that requests that take long leave
/// threads to other addresses.
bool HttpServer::HasTurn(uint32_t peer) const {
  const auto is_of_peer = [&](const Connection& one) { return one.is_handled && one.peer == peer; };
  return std::ranges::count(connections_, true, &Connection::is_handled) < kMaxHandled &&
         std::ranges::count_if(connections_, is_of_peer) < kMaxHandledOfPeer;
}

/// Returns the text of the answer; nothing if the connection is to be closed without one.
std::optional<std::string> HttpServer::Respond(Connection& connection) {
  const std::optional<std::string> head = ReceiveHead(connection.socket.get());
  if (!head) return std::nullopt;
  if (head->size() > kMaxHeadBytes) {
    return ResponseText(Refusal(kBadRequest, "the request is too long"), /*has_body=*/true);
  }
  {
    const MutexLock lock(mutex_);
    while (!stopped_ && !connection.is_replaced && !HasTurn(connection.peer)) {
      changed_.Wait(mutex_);
    }
    if (stopped_ || connection.is_replaced) return std::nullopt;
    connection.is_handled = true;
  }
  const auto request = ParseHttpRequest(*head);
  const HttpResponse response =
      request ? Answer(*request) : Refusal(kBadRequest, "this is not a request of HTTP/1.1");
  std::string text = ResponseText(response, !request || request->method != "HEAD");
  const MutexLock lock(mutex_);
  connection.is_handled = false;
  connection.waits_since = Clock::now();
  changed_.NotifyAll();
  return text;
}

void HttpServer::Serve(std::list<Connection>::iterator connection) {
  const int socket = connection->socket.get();
  kv::CleanUp([&] {  // without enough memory, the connection is closed
    if (const std::optional<std::string> text = Respond(*connection)) {
      Send(socket, *text);
      Drain(socket);
    }
  });
  const MutexLock lock(mutex_);
  connections_.erase(connection);
  changed_.NotifyAll();
}

// --- the thread that accepts connections

/// Closes a connection if there are kMaxConnections.
void HttpServer::MakePlace() {
  while (connections_.size() >= kMaxConnections && !stopped_) {
    std::map<uint32_t, size_t> waiting;  // by address
    for (const Connection& one : connections_) waiting[one.peer] += one.is_handled ? 0 : 1;
    Connection& replaced = *std::ranges::max_element(connections_, {}, [&](const Connection& one) {
      return std::tuple(!one.is_handled, waiting[one.peer], -one.waits_since.time_since_epoch());
    });
    if (Clock::now() < replaced.waits_since + kMinTime) {
      (void)changed_.WaitUntil(mutex_, replaced.waits_since + kMinTime);
      continue;
    }
    replaced.is_replaced = true;
    ::shutdown(replaced.socket.get(), SHUT_RDWR);
    changed_.NotifyAll();
    while (connections_.size() >= kMaxConnections && !stopped_) changed_.Wait(mutex_);
  }
}

void HttpServer::Accept() {
  while (true) {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    FileDescriptor socket(RetryInterrupted([&] {
      return ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&peer), &size,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
    }));
    const MutexLock lock(mutex_);
    if (stopped_) return;
    if (!socket.is_open()) {
      (void)changed_.WaitUntil(mutex_, Clock::now() + kAcceptPause);
      continue;
    }
    MakePlace();
    if (stopped_) return;
    const int on = 1;
    (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // only faster
    connections_.push_back({.socket = std::move(socket), .peer = peer.sin_addr.s_addr});
    const auto added = std::prev(connections_.end());
    auto thread = kv::StartThread("a connection", [this, added] { Serve(added); });
    if (thread) {
      thread->detach();  // the destructor waits until it has removed the connection
    } else {
      connections_.erase(added);
    }
  }
}

// --- the server

Result<void> HttpServer::Listen() {
  const std::string place = fmt::format("{}:{}", options_.address, options_.port);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(options_.port);
  if (inet_pton(AF_INET, options_.address.c_str(), &address.sin_addr) != 1) {
    return Fail(ErrorCode::kUnavailable,
                fmt::format("cannot listen on {}: give an IPv4 address", EscapeText(place)));
  }
  listener_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener_.is_open()) return Fail(ListenError(place, errno));
  const int on = 1;
  (void)::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (::bind(listener_.get(), generic, size) != 0 || ::listen(listener_.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener_.get(), generic, &size) != 0) {
    return Fail(ListenError(place, errno));
  }
  port_ = ntohs(address.sin_port);
  return {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                      Handler handler) {
  std::unique_ptr<HttpServer> server(new HttpServer(options, std::move(handler)));
  CAIRN_TRY(server->Listen());
  CAIRN_TRY_ASSIGN(server->acceptor_, kv::StartThread("the live view", [borrowed = server.get()] {
                     borrowed->Accept();
                   }));
  return server;
}

}  // namespace cairn::tools
