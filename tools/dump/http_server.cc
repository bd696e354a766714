// An HTTP server: one thread has all sockets, and others call the handler.
//
// A connection passes these phases, and has one request:
//   1. reading: the head of the request arrives, within kHeadTime in total;
//   2. handling: the connection belongs to the thread that calls the handler;
//   3. writing: the answer leaves, at kMinBytesPerSecond at least;
//   4. draining: what the client still sends is discarded. A close with unread bytes would reset
//      the connection, and the client could lose the answer.
// So a slow client takes a socket, but never a thread. If there are kMaxConnections, the next one
// replaces one that is not being handled: of the address that has the most, the one that has waited
// for its client longest, and kMinTime at least. If there is none, and the address of the next one
// has at most half of all, it replaces the request of the busiest address that came last. A client
// that opens very many therefore loses its own ones first, and whoever sends a request at once is
// answered.

#include "tools/dump/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <iterator>
#include <tuple>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"
#include "kv/io/file_descriptor.h"
#include "tools/common/json.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

using kv::FileDescriptor;
using kv::RetryInterrupted;

constexpr size_t kMaxConnections = 256;
constexpr size_t kHandlerThreads = 16;
constexpr size_t kPeerThreads = 12;  // handle requests of one address
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

constexpr std::string_view kLineEnd = "\r\n";

/// Removes and returns the first line.
std::string_view TakeLine(std::string_view& lines) {
  const size_t end = std::min(lines.find(kLineEnd), lines.size());
  const std::string_view line = lines.substr(0, end);
  lines.remove_prefix(std::min(end + kLineEnd.size(), lines.size()));
  return line;
}

int HexDigit(char digit) {
  const char lower = LowerAscii(digit);
  if ('0' <= lower && lower <= '9') return lower - '0';
  if ('a' <= lower && lower <= 'f') return lower - 'a' + 10;
  return -1;
}

/// Replaces "%41" by "A", and, if `plus_is_space`, "+" by " ". Other text is unchanged.
std::string DecodePercent(std::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
    if (text[i] == '%' && high >= 0 && low >= 0) {
      decoded += static_cast<char>(high * 16 + low);
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
  const std::string_view request = TakeLine(lines);
  const size_t method_end = request.find(' ');
  const size_t target_end = request.rfind(' ');
  if (method_end == std::string_view::npos || target_end == method_end) return std::nullopt;
  const std::string_view version = request.substr(target_end + 1);
  const std::string_view target = request.substr(method_end + 1, target_end - method_end - 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return std::nullopt;
  if (!target.starts_with('/') || target.contains(' ')) return std::nullopt;
  const size_t path_end = std::min(target.find('?'), target.size());
  HttpRequest parsed{.method = std::string(request.substr(0, method_end)),
                     .path = DecodePercent(target.substr(0, path_end), /*plus_is_space=*/false),
                     .query = std::string(target.substr(std::min(path_end + 1, target.size())))};
  for (std::string_view line = TakeLine(lines); !line.empty(); line = TakeLine(lines)) {
    const size_t colon = line.find(':');
    // A line that begins with a space would continue the one before it, which is obsolete.
    if (colon == std::string_view::npos || colon == 0 || line.front() == ' ') return std::nullopt;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), LowerAscii);
    parsed.headers.emplace(std::move(name), Trim(line.substr(colon + 1)));
  }
  return parsed;
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

}  // namespace

std::string_view HttpRequest::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

std::optional<std::string> HttpRequest::Parameter(const std::string& name) const {
  for (std::string_view rest = query; !rest.empty();) {
    const size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view one = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (one.starts_with(name) && one.substr(name.size()).starts_with('=')) {
      return DecodePercent(one.substr(name.size() + 1), /*plus_is_space=*/true);
    }
  }
  return std::nullopt;
}

bool IsLoopback(std::string_view name) { return name.starts_with("127.") && IsIpv4(name); }

enum class Phase : uint8_t { kReading, kHandling, kWriting, kDraining };

struct HttpServer::Connection {
  FileDescriptor socket;
  uint32_t peer = 0;  // its IPv4 address
  Phase phase = Phase::kReading;
  Clock::time_point since;     // begin of the phase
  Clock::time_point deadline;  // end of the phase; kHandling has none
  std::string received;
  std::string answer;
  size_t sent_bytes = 0;

  short events() const { return phase == Phase::kWriting ? POLLOUT : POLLIN; }
};

HttpServer::HttpServer(HttpServerOptions options, Handler handler)
    : options_(std::move(options)), handler_(std::move(handler)) {}

HttpServer::~HttpServer() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  Wake();
  threads_.clear();  // joins them
}

void HttpServer::Wake() const {
  const uint64_t one = 1;
  (void)RetryInterrupted([&] { return ::write(wake_.get(), &one, sizeof(one)); });
}

// --- the threads that call the handler

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

/// Returns a request of the address with the fewest in work, so that requests that take long
/// leave threads to other addresses; null if there is none.
HttpServer::Connection* HttpServer::TakeRequest() {
  const auto next = std::ranges::min_element(
      requests_, {}, [&](const Connection* waiting) { return handled_[waiting->peer]; });
  if (next == requests_.end() || handled_[(*next)->peer] >= kPeerThreads) return nullptr;
  Connection* const taken = *next;
  requests_.erase(next);
  ++handled_[taken->peer];
  return taken;
}

void HttpServer::HandleRequests() {
  while (true) {
    Connection* connection = nullptr;
    {
      const MutexLock lock(mutex_);
      while (!stopped_ && (connection = TakeRequest()) == nullptr) changed_.Wait(mutex_);
      if (stopped_) return;
    }
    const auto request = ParseHttpRequest(connection->received);
    const HttpResponse response =
        request ? Answer(*request) : Refusal(kBadRequest, "this is not a request of HTTP/1.1");
    connection->answer = ResponseText(response, !request || request->method != "HEAD");
    {
      const MutexLock lock(mutex_);
      if (--handled_[connection->peer] == 0) handled_.erase(connection->peer);
      answered_.push_back(connection);
      changed_.NotifyOne();  // another request of this address may wait
    }
    Wake();
  }
}

// --- the thread with the sockets

bool HttpServer::TakeAnswers() {
  const MutexLock lock(mutex_);
  for (Connection* connection : std::exchange(answered_, {})) {
    BeginWriting(*connection, std::move(connection->answer), Clock::now());
  }
  return !stopped_;
}

void HttpServer::BeginWriting(Connection& connection, std::string answer, Clock::time_point now) {
  connection.answer = std::move(answer);
  connection.phase = Phase::kWriting;
  connection.since = now;
  connection.deadline =
      now + kHeadTime + std::chrono::seconds(connection.answer.size() / kMinBytesPerSecond);
}

/// Returns the connection that the next one replaces if there are kMaxConnections. Requires that
/// there are some.
auto HttpServer::Replaced() -> std::list<Connection>::iterator {
  std::map<uint32_t, size_t> count_of;
  for (const Connection& connection : connections_) {
    if (connection.phase != Phase::kHandling) ++count_of[connection.peer];
  }
  return std::ranges::max_element(connections_, {}, [&](const Connection& connection) {
    return std::tuple(connection.phase != Phase::kHandling, count_of[connection.peer],
                      -connection.since.time_since_epoch());
  });
}

size_t HttpServer::CountOf(uint32_t peer) const {
  return static_cast<size_t>(std::ranges::count(connections_, peer, &Connection::peer));
}

/// Closes the connection whose request came last among those that wait for a thread, of the address
/// with the most connections. Returns whether there is one.
bool HttpServer::DropRequest() {
  const MutexLock lock(mutex_);
  const auto last =
      std::ranges::max_element(requests_.rbegin(), requests_.rend(), {},
                               [&](const Connection* waiting) { return CountOf(waiting->peer); });
  if (last == requests_.rend()) return false;
  Connection* const dropped = *last;
  requests_.erase(std::prev(last.base()));
  std::erase_if(connections_, [&](const Connection& one) { return &one == dropped; });
  return true;
}

/// Returns when the next connection can be accepted.
auto HttpServer::AcceptTime() -> Clock::time_point {
  if (connections_.size() < kMaxConnections) return accept_after_;
  const auto replaced = Replaced();
  if (replaced->phase == Phase::kHandling) return accept_after_;
  return std::max(accept_after_, replaced->since + kMinTime);
}

/// Closes a connection for one from `peer` if there are kMaxConnections. Returns whether there is a
/// place for it.
bool HttpServer::MakePlace(uint32_t peer) {
  if (connections_.size() < kMaxConnections) return true;
  const auto replaced = Replaced();
  if (replaced->phase == Phase::kHandling) {
    return CountOf(peer) <= kMaxConnections / 2 && DropRequest();
  }
  connections_.erase(replaced);
  return true;
}

void HttpServer::Accept(Clock::time_point now) {
  while (AcceptTime() <= now) {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    FileDescriptor socket(RetryInterrupted([&] {
      return ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&peer), &size,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
    }));
    if (!socket.is_open()) {
      if (errno != EAGAIN && errno != ECONNABORTED) accept_after_ = now + kAcceptPause;
      return;
    }
    if (!MakePlace(peer.sin_addr.s_addr)) continue;  // closes it
    const int on = 1;
    (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // only faster
    connections_.push_back({.socket = std::move(socket),
                            .peer = peer.sin_addr.s_addr,
                            .since = now,
                            .deadline = now + kHeadTime});
  }
}

/// Reads what has arrived. Returns whether the connection is still open.
bool HttpServer::Read(Connection& connection) {
  std::array<char, 16384> buffer;
  const ssize_t count = RetryInterrupted(
      [&] { return ::recv(connection.socket.get(), buffer.data(), buffer.size(), 0); });
  if (count < 0) return errno == EAGAIN;
  if (connection.phase == Phase::kReading) {
    connection.received.append(buffer.data(), static_cast<size_t>(count));
  }
  return count > 0;
}

/// Does what the socket is ready for. Closes the connection if it has ended.
void HttpServer::Advance(Connection& connection, Clock::time_point now) {
  if (connection.phase == Phase::kWriting) {
    const std::string_view rest = std::string_view(connection.answer).substr(connection.sent_bytes);
    const ssize_t count = RetryInterrupted(
        [&] { return ::send(connection.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL); });
    if (count < 0) {
      if (errno != EAGAIN) connection.socket.Close();
      return;
    }
    connection.sent_bytes += static_cast<size_t>(count);
    if (connection.sent_bytes < connection.answer.size()) return;
    ::shutdown(connection.socket.get(), SHUT_WR);
    connection.answer = {};
    connection.phase = Phase::kDraining;
    connection.since = now;
    connection.deadline = now + kDrainTime;
    return;
  }
  const size_t known_bytes = connection.received.size();
  if (!Read(connection)) connection.socket.Close();
  if (connection.phase != Phase::kReading || !connection.socket.is_open()) return;
  const size_t begin = std::max(known_bytes, kHeadEnd.size()) - kHeadEnd.size();
  const size_t end = connection.received.find(kHeadEnd, begin);
  if (end != std::string::npos && end + kHeadEnd.size() <= kMaxHeadBytes) {
    connection.received.resize(end + kHeadEnd.size());
    connection.phase = Phase::kHandling;
    const MutexLock lock(mutex_);
    requests_.push_back(&connection);
    changed_.NotifyOne();
  } else if (connection.received.size() > kMaxHeadBytes) {
    connection.received = {};
    BeginWriting(connection,
                 ResponseText(Refusal(kBadRequest, "the request is too long"), /*has_body=*/true),
                 now);
  }
}

/// Waits for the next event, and handles all events.
void HttpServer::Serve() {
  std::vector<pollfd> polled;
  while (TakeAnswers()) {
    Clock::time_point now = Clock::now();
    std::erase_if(connections_, [&](const Connection& connection) {
      return connection.phase != Phase::kHandling && connection.deadline <= now;
    });
    Clock::time_point next = now + std::chrono::hours(1);
    const auto accept_time = AcceptTime();
    const bool accepts = accept_time <= now;
    if (!accepts) next = std::min(next, accept_time);
    polled.clear();
    polled.push_back({.fd = wake_.get(), .events = POLLIN});
    polled.push_back({.fd = accepts ? listener_.get() : -1, .events = POLLIN});
    for (const Connection& connection : connections_) {
      const bool is_handled = connection.phase == Phase::kHandling;
      polled.push_back(
          {.fd = is_handled ? -1 : connection.socket.get(), .events = connection.events()});
      if (!is_handled) next = std::min(next, connection.deadline);
    }
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - now);
    if (::poll(polled.data(), polled.size(), static_cast<int>(wait.count())) <= 0) continue;
    now = Clock::now();
    if (polled[0].revents != 0) {
      uint64_t ignored = 0;
      (void)RetryInterrupted([&] { return ::read(wake_.get(), &ignored, sizeof(ignored)); });
    }
    auto ready = polled.begin() + 2;
    for (Connection& connection : connections_) {
      if ((ready++)->revents != 0) Advance(connection, now);
    }
    std::erase_if(connections_,
                  [](const Connection& connection) { return !connection.socket.is_open(); });
    if (polled[1].revents != 0) Accept(now);
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
  listener_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener_.is_open() || !wake_.is_open()) return Fail(ListenError(place, errno));
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
  HttpServer* const borrowed = server.get();  // its destructor joins the threads
  CAIRN_TRY(kv::CatchExhaustion("the live view", [&]() -> Result<void> {
    borrowed->threads_.emplace_back([borrowed] { borrowed->Serve(); });
    for (size_t i = 0; i < kHandlerThreads; ++i) {
      borrowed->threads_.emplace_back([borrowed] { borrowed->HandleRequests(); });
    }
    return {};
  }));
  return server;
}

}  // namespace cairn::tools
