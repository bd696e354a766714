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
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"
#include "kv/io/file_descriptor.h"
#include "tools/common/json.h"
#include "tools/common/text.h"
#include "tools/dump/http_message.h"

namespace cairn::tools {
namespace {

using Clock = std::chrono::steady_clock;
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

bool IsIpv4(std::string_view name) {
  in_addr address = {};
  return inet_pton(AF_INET, std::string(name).c_str(), &address) == 1;
}

bool EqualWithoutCase(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, LowerAscii, LowerAscii);
}

HttpResponse Refusal(int status, std::string message) {
  return {
      .status = status,
      .body = Json({{"error", {{"code", HttpStatusText(status)}, {"message", message}}}}).Line()};
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
bool IsOfOtherSite(const HttpHead& head) {
  const std::string_view site = head.Header("sec-fetch-site");
  if (site.empty() || site == "same-origin" || site == "none") return false;
  return head.Header("sec-fetch-mode") != "navigate" ||
         head.Header("sec-fetch-dest") != "document" || head.path != "/";
}

enum class Phase : uint8_t { kReading, kHandling, kWriting, kDraining };

struct Connection {
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

bool IsLoopback(std::string_view name) { return name.starts_with("127.") && IsIpv4(name); }

struct HttpServer::Impl {
  HttpServerOptions options;
  Handler handler;
  uint16_t port = 0;
  FileDescriptor listener;
  FileDescriptor wake;  // an eventfd: threads have answered, or the server ends

  // Only the thread with the sockets uses these; in the order in which they were accepted.
  std::list<Connection> connections;
  Clock::time_point accept_after;

  Mutex mutex;
  CondVar changed;
  std::deque<Connection*> requests CAIRN_GUARDED_BY(mutex);
  std::map<uint32_t, size_t> handled CAIRN_GUARDED_BY(mutex);  // requests, by address
  std::vector<Connection*> answered CAIRN_GUARDED_BY(mutex);
  bool stopped CAIRN_GUARDED_BY(mutex) = false;
  std::vector<std::jthread> threads;

  ~Impl() {
    {
      const MutexLock lock(mutex);
      stopped = true;
      changed.NotifyAll();
    }
    Wake();
    threads.clear();  // joins them
  }

  Result<void> Listen();
  void Wake() const {
    const uint64_t one = 1;
    (void)RetryInterrupted([&] { return ::write(wake.get(), &one, sizeof(one)); });
  }

  // The threads that call the handler.
  void HandleRequests();
  Connection* TakeRequest() CAIRN_REQUIRES(mutex);
  HttpResponse Answer(const HttpHead& head) const;
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
};

// --- the threads that call the handler

bool HttpServer::Impl::AcceptsHost(std::string_view host) const {
  if (std::ranges::count(options.hosts, "*") > 0) return true;
  const std::string_view name = HostName(host);
  if (EqualWithoutCase(name, "localhost") || name == "[::1]" || IsLoopback(name)) return true;
  // Nobody can make an address resolve to this machine.
  if (!IsLoopback(options.address) && IsIpv4(name)) return true;
  return !name.empty() && std::ranges::any_of(options.hosts, [&](const std::string& accepted) {
    return EqualWithoutCase(name, accepted);
  });
}

HttpResponse HttpServer::Impl::Answer(const HttpHead& head) const {
  if (head.method != "GET" && head.method != "HEAD") {
    return Refusal(kMethodNotAllowed, "kv-dump serve only reads: use GET or HEAD");
  }
  const std::string_view host = head.Header("host");
  if (!AcceptsHost(host)) {
    const std::string name(HostName(host));
    return Refusal(kForbidden, fmt::format("kv-dump serve does not accept the host {}; if it is "
                                           "this machine, add --allow-host {}",
                                           EscapeText(name), ShellWord(name)));
  }
  if (IsOfOtherSite(head)) {
    return Refusal(kForbidden, "kv-dump serve does not answer the pages of other sites");
  }
  try {
    return handler({.path = head.path, .query = head.query});
  } catch (const std::exception& error) {
    return Refusal(kInternalError, EscapeText(error.what()));
  }
}

/// Returns a request of the address with the fewest in work, so that requests that take long
/// leave threads to other addresses; null if there is none.
Connection* HttpServer::Impl::TakeRequest() {
  const auto next = std::ranges::min_element(
      requests, {}, [&](const Connection* waiting) { return handled[waiting->peer]; });
  if (next == requests.end() || handled[(*next)->peer] >= kPeerThreads) return nullptr;
  Connection* const taken = *next;
  requests.erase(next);
  ++handled[taken->peer];
  return taken;
}

void HttpServer::Impl::HandleRequests() {
  while (true) {
    Connection* connection = nullptr;
    {
      const MutexLock lock(mutex);
      while (!stopped && (connection = TakeRequest()) == nullptr) changed.Wait(mutex);
      if (stopped) return;
    }
    const auto head = ParseHttpHead(connection->received);
    const HttpResponse response =
        head ? Answer(*head) : Refusal(kBadRequest, "this is not a request of HTTP/1.1");
    connection->answer = ResponseText(response, !head || head->method != "HEAD");
    {
      const MutexLock lock(mutex);
      if (--handled[connection->peer] == 0) handled.erase(connection->peer);
      answered.push_back(connection);
      changed.NotifyOne();  // another request of this address may wait
    }
    Wake();
  }
}

// --- the thread with the sockets

bool HttpServer::Impl::TakeAnswers() {
  const MutexLock lock(mutex);
  for (Connection* connection : std::exchange(answered, {})) {
    BeginWriting(*connection, std::move(connection->answer), Clock::now());
  }
  return !stopped;
}

void HttpServer::Impl::BeginWriting(Connection& connection, std::string answer,
                                    Clock::time_point now) {
  connection.answer = std::move(answer);
  connection.phase = Phase::kWriting;
  connection.since = now;
  connection.deadline =
      now + kHeadTime + std::chrono::seconds(connection.answer.size() / kMinBytesPerSecond);
}

/// Returns the connection that the next one replaces if there are kMaxConnections. Requires that
/// there are some.
std::list<Connection>::iterator HttpServer::Impl::Replaced() {
  std::map<uint32_t, size_t> count_of;
  for (const Connection& connection : connections) {
    if (connection.phase != Phase::kHandling) ++count_of[connection.peer];
  }
  return std::ranges::max_element(connections, {}, [&](const Connection& connection) {
    return std::tuple(connection.phase != Phase::kHandling, count_of[connection.peer],
                      -connection.since.time_since_epoch());
  });
}

size_t HttpServer::Impl::CountOf(uint32_t peer) const {
  return static_cast<size_t>(std::ranges::count(connections, peer, &Connection::peer));
}

/// Closes the connection whose request came last among those that wait for a thread, of the address
/// with the most connections. Returns whether there is one.
bool HttpServer::Impl::DropRequest() {
  const MutexLock lock(mutex);
  const auto last =
      std::ranges::max_element(requests.rbegin(), requests.rend(), {},
                               [&](const Connection* waiting) { return CountOf(waiting->peer); });
  if (last == requests.rend()) return false;
  Connection* const dropped = *last;
  requests.erase(std::prev(last.base()));
  std::erase_if(connections, [&](const Connection& one) { return &one == dropped; });
  return true;
}

/// Returns when the next connection can be accepted.
Clock::time_point HttpServer::Impl::AcceptTime() {
  if (connections.size() < kMaxConnections) return accept_after;
  const auto replaced = Replaced();
  if (replaced->phase == Phase::kHandling) return accept_after;
  return std::max(accept_after, replaced->since + kMinTime);
}

/// Closes a connection for one from `peer` if there are kMaxConnections. Returns whether there is a
/// place for it.
bool HttpServer::Impl::MakePlace(uint32_t peer) {
  if (connections.size() < kMaxConnections) return true;
  const auto replaced = Replaced();
  if (replaced->phase == Phase::kHandling) {
    return CountOf(peer) <= kMaxConnections / 2 && DropRequest();
  }
  connections.erase(replaced);
  return true;
}

void HttpServer::Impl::Accept(Clock::time_point now) {
  while (AcceptTime() <= now) {
    sockaddr_in peer = {};
    socklen_t size = sizeof(peer);
    FileDescriptor socket(RetryInterrupted([&] {
      return ::accept4(listener.get(), reinterpret_cast<sockaddr*>(&peer), &size,
                       SOCK_NONBLOCK | SOCK_CLOEXEC);
    }));
    if (!socket.is_open()) {
      if (errno != EAGAIN && errno != ECONNABORTED) accept_after = now + kAcceptPause;
      return;
    }
    if (!MakePlace(peer.sin_addr.s_addr)) continue;  // closes it
    const int on = 1;
    (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // only faster
    connections.push_back({.socket = std::move(socket),
                           .peer = peer.sin_addr.s_addr,
                           .since = now,
                           .deadline = now + kHeadTime});
  }
}

/// Reads what has arrived. Returns whether the connection is still open.
bool HttpServer::Impl::Read(Connection& connection) {
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
void HttpServer::Impl::Advance(Connection& connection, Clock::time_point now) {
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
    const MutexLock lock(mutex);
    requests.push_back(&connection);
    changed.NotifyOne();
  } else if (connection.received.size() > kMaxHeadBytes) {
    connection.received = {};
    BeginWriting(connection,
                 ResponseText(Refusal(kBadRequest, "the request is too long"), /*has_body=*/true),
                 now);
  }
}

/// Waits for the next event, and handles all events.
void HttpServer::Impl::Serve() {
  std::vector<pollfd> polled;
  while (TakeAnswers()) {
    Clock::time_point now = Clock::now();
    std::erase_if(connections, [&](const Connection& connection) {
      return connection.phase != Phase::kHandling && connection.deadline <= now;
    });
    Clock::time_point next = now + std::chrono::hours(1);
    const auto accept_time = AcceptTime();
    const bool accepts = accept_time <= now;
    if (!accepts) next = std::min(next, accept_time);
    polled.clear();
    polled.push_back({.fd = wake.get(), .events = POLLIN});
    polled.push_back({.fd = accepts ? listener.get() : -1, .events = POLLIN});
    for (const Connection& connection : connections) {
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
      (void)RetryInterrupted([&] { return ::read(wake.get(), &ignored, sizeof(ignored)); });
    }
    auto ready = polled.begin() + 2;
    for (Connection& connection : connections) {
      if ((ready++)->revents != 0) Advance(connection, now);
    }
    std::erase_if(connections,
                  [](const Connection& connection) { return !connection.socket.is_open(); });
    if (polled[1].revents != 0) Accept(now);
  }
}

// --- the server

Result<void> HttpServer::Impl::Listen() {
  const std::string place = fmt::format("{}:{}", options.address, options.port);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(options.port);
  if (inet_pton(AF_INET, options.address.c_str(), &address.sin_addr) != 1) {
    return Fail(ErrorCode::kUnavailable,
                fmt::format("cannot listen on {}: give an IPv4 address", EscapeText(place)));
  }
  listener = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  wake = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listener.is_open() || !wake.is_open()) return Fail(ListenError(place, errno));
  const int on = 1;
  (void)::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (::bind(listener.get(), generic, size) != 0 || ::listen(listener.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener.get(), generic, &size) != 0) {
    return Fail(ListenError(place, errno));
  }
  port = ntohs(address.sin_port);
  return {};
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return impl_->port; }

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                      Handler handler) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->handler = std::move(handler);
  CAIRN_TRY(impl->Listen());
  Impl* const borrowed = impl.get();  // its destructor joins the threads
  CAIRN_TRY(kv::CatchExhaustion("the live view", [&]() -> Result<void> {
    impl->threads.emplace_back([borrowed] { borrowed->Serve(); });
    for (size_t i = 0; i < kHandlerThreads; ++i) {
      impl->threads.emplace_back([borrowed] { borrowed->HandleRequests(); });
    }
    return {};
  }));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace cairn::tools
