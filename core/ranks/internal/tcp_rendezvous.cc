// Exchanges messages through rank 0:
// 1. Every other rank tries to connect until rank 0 listens, and sends a hello.
// 2. Rank 0 keeps the connections until it has the hellos of all ranks. It closes a connection that
//    sends anything else, and refuses a hello of another run. A rank that disconnects is missing
//    again.
// 3. Rank 0 sends each rank its answer and closes the connection. At the deadline it sends a
//    refusal that names the missing ranks.
// Rank 0 never waits for a single connection. It has at most kSpareConnections more connections
// than ranks, and at most one record per connection.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>

#include "core/ranks/internal/rendezvous.h"
#include "kv/io/file_descriptor.h"

namespace cairn::core::internal {
namespace {

constexpr size_t kSpareConnections = 32;
constexpr std::chrono::milliseconds kRetryPause(20);

using kv::FileDescriptor;
using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

std::string UrlOf(const Endpoint& endpoint) {
  return fmt::format("tcp://{}:{}", endpoint.host, endpoint.port);
}

Result<AddressList> Resolve(const Endpoint& endpoint) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &found);
  if (failed != 0) {
    return Fail(ErrorCode::kUnavailable,
                fmt::format("cannot look up {}: {}", endpoint.host, ::gai_strerror(failed)));
  }
  return AddressList(found, &::freeaddrinfo);
}

Result<std::string> InDigits(const sockaddr* address, socklen_t length) {
  char name[NI_MAXHOST];
  const int failed = ::getnameinfo(address, length, name, sizeof(name), nullptr, 0, NI_NUMERICHOST);
  if (failed != 0) {
    return Fail(ErrorCode::kUnavailable,
                fmt::format("cannot format an address: {}", ::gai_strerror(failed)));
  }
  return std::string(name);
}

Error Failed(const char* what, const Endpoint& endpoint, int error_number) {
  return SystemError(error_number, fmt::format("rendezvous {}: {}", UrlOf(endpoint), what));
}

Result<FileDescriptor> Listen(const Endpoint& endpoint) {
  CAIRN_TRY_ASSIGN(const AddressList addresses, Resolve(endpoint));
  int failed = 0;
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    FileDescriptor socket(
        ::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;  // allows the port of a run that has just ended to be used again
    if (socket.is_open() &&
        ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        ::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
    failed = errno;
  }
  return Fail(Failed("rank 0 cannot listen", endpoint, failed));
}

enum class Progress { kDone, kAgain, kGone };

/// Sends as much of `text` from `sent` on as the socket accepts.
Progress SendSome(int fd, std::string_view text, size_t& sent) {
  while (sent < text.size()) {
    const ssize_t count = ::send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      return Progress::kAgain;
    } else if (errno != EINTR) {
      return Progress::kGone;
    }
  }
  return Progress::kDone;
}

/// Appends what has arrived, up to one record. kDataLoss: it is not a record, or the record is too
/// long.
Result<Progress> ReceiveSome(int fd, uint64_t max_bytes, std::string& record) {
  while (true) {
    CAIRN_TRY_ASSIGN(const auto length, RecordLength(record, max_bytes));
    const uint64_t wanted_bytes = length.value_or(kRecordHeaderBytes);
    if (length && record.size() == wanted_bytes) return Progress::kDone;
    const size_t before = record.size();
    // The buffer grows with what arrives, not to the length that the sender states.
    record.resize(std::min<uint64_t>(wanted_bytes, before + 64 * 1024));
    const ssize_t count = ::recv(fd, record.data() + before, record.size() - before, 0);
    const int failed = errno;
    record.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count > 0 || (count < 0 && failed == EINTR)) continue;
    return count < 0 && failed == EAGAIN ? Progress::kAgain : Progress::kGone;
  }
}

/// Encodes a record with one message: a reason.
std::string EncodeReason(RendezvousRecord::Kind kind, const Party& party, std::string reason) {
  reason.resize(std::min<size_t>(reason.size(), kMaxRendezvousMessageBytes));
  return EncodeRecord({.kind = kind,
                       .rank = static_cast<uint32_t>(party.rank),
                       .world_size = static_cast<uint32_t>(party.world_size),
                       .run_id = party.run_id,
                       .messages = {std::move(reason)}});
}

int PollLimit(std::chrono::milliseconds time) {
  return static_cast<int>(std::min<int64_t>(time.count(), 60'000));
}

/// The side of rank 0.
class Meeting {
 public:
  Meeting(const Endpoint& endpoint, const Party& party, const std::vector<std::string>& messages,
          Deadline deadline)
      : endpoint_(endpoint), party_(party), deadline_(deadline) {
    hellos_.resize(static_cast<size_t>(party.world_size));
    present_.resize(hellos_.size());
    hellos_[0] = messages;
    present_[0] = true;
    has_come_ = present_;
  }

  Result<std::vector<std::string>> Run() {
    CAIRN_TRY_ASSIGN(listener_, Listen(endpoint_));
    while (!EveryoneIsHere()) {
      if (TimeLeft(deadline_).count() == 0) return Fail(SendHome());
      CAIRN_TRY(Step());
    }
    return Answer();
  }

 private:
  struct Connection {
    FileDescriptor socket;
    std::string received;
    std::string to_send;
    size_t sent = 0;
    int rank = -1;         // known once it has sent a hello
    bool is_over = false;  // will be closed
  };

  bool EveryoneIsHere() const { return std::ranges::find(present_, false) == present_.end(); }

  /// Waits for events on connections and handles them.
  Result<void> Step() {
    std::vector<pollfd> polled = {{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_) {
      const bool is_sending = connection.sent < connection.to_send.size();
      polled.push_back({.fd = connection.socket.get(),
                        .events = static_cast<short>(is_sending ? POLLOUT : POLLIN),
                        .revents = 0});
    }
    if (::poll(polled.data(), polled.size(), PollLimit(TimeLeft(deadline_))) < 0) {
      if (errno == EINTR) return {};
      return Fail(Failed("rank 0 cannot wait", endpoint_, errno));
    }
    size_t i = 1;
    for (Connection& connection : connections_) {
      if (polled[i++].revents != 0) Handle(connection);
    }
    connections_.remove_if([](const Connection& connection) { return connection.is_over; });
    if (polled[0].revents != 0) CAIRN_TRY(Accept());
    return {};
  }

  Result<void> Accept() {
    FileDescriptor socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      // The peer has disconnected, or there is no free descriptor now. Continue with others.
      if (errno == EMFILE || errno == ENFILE) return Fail(Failed("accept", endpoint_, errno));
      return {};
    }
    if (connections_.size() >= hellos_.size() + kSpareConnections) {
      // Close the connection that has been silent for the longest time.
      const auto silent = std::ranges::find(connections_, -1, &Connection::rank);
      if (silent != connections_.end()) connections_.erase(silent);
    }
    connections_.push_back({.socket = std::move(socket)});
    return {};
  }

  void Handle(Connection& connection) {
    if (!connection.to_send.empty()) {
      const Progress progress =
          SendSome(connection.socket.get(), connection.to_send, connection.sent);
      connection.is_over = progress != Progress::kAgain;
      return;
    }
    if (connection.rank >= 0) return Leave(connection);  // a rank sends nothing after its hello
    const auto progress = ReceiveSome(connection.socket.get(), MaxRecordBytes(party_.world_size),
                                      connection.received);
    if (!progress || *progress == Progress::kGone) {
      connection.is_over = true;
    } else if (*progress == Progress::kDone) {
      Welcome(connection);
    }
  }

  void Leave(Connection& connection) {
    present_[static_cast<size_t>(connection.rank)] = false;
    connection.is_over = true;
  }

  void Welcome(Connection& connection) {
    auto record = DecodeRecord(connection.received);
    if (!record || record->kind != RendezvousRecord::Kind::kHello) {
      connection.is_over = true;
      return;
    }
    const std::string reason = ReasonAgainst(*record);
    if (!reason.empty()) {
      connection.to_send = EncodeReason(RendezvousRecord::Kind::kRefusal, party_, reason);
      return;
    }
    connection.rank = static_cast<int>(record->rank);
    present_[record->rank] = true;
    has_come_[record->rank] = true;
    hellos_[record->rank] = std::move(record->messages);
  }

  std::string ReasonAgainst(const RendezvousRecord& hello) const {
    if (hello.run_id != party_.run_id) {
      return fmt::format("rank 0 is of run '{}', not '{}'", party_.run_id, hello.run_id);
    }
    if (hello.world_size != hellos_.size() || hello.messages.size() != hellos_.size()) {
      return fmt::format("rank 0 is of a world of {} ranks, not {}", hellos_.size(),
                         hello.world_size);
    }
    if (hello.rank >= hellos_.size()) return fmt::format("there is no rank {}", hello.rank);
    if (present_[hello.rank]) return fmt::format("there is a rank {} already", hello.rank);
    return "";
  }

  /// Sends the reason of the failure to all ranks that have arrived.
  Error SendHome() {
    // A rank whose deadline is a little earlier has already left; it is not one that was missing.
    const bool all_came = std::ranges::find(has_come_, false) == has_come_.end();
    const std::string reason = all_came ? fmt::format("ranks that came and went: {} of {}",
                                                      MissingRanks(present_), hellos_.size())
                                        : fmt::format("ranks that did not arrive in time: {} of {}",
                                                      MissingRanks(has_come_), hellos_.size());
    const std::string last_words = EncodeReason(RendezvousRecord::Kind::kTimedOut, party_, reason);
    for (Connection& connection : connections_) {
      // The deadline has passed: what the socket does not accept at once is not sent.
      size_t sent = 0;
      SendSome(connection.socket.get(), last_words, sent);
    }
    return {.code = ErrorCode::kUnavailable,
            .message = fmt::format("rendezvous {}: {}", UrlOf(endpoint_), reason)};
  }

  Result<std::vector<std::string>> Answer() {
    listener_ = FileDescriptor();
    connections_.remove_if([](const Connection& connection) { return connection.rank < 0; });
    for (Connection& connection : connections_) {
      connection.to_send = EncodeRecord({.kind = RendezvousRecord::Kind::kAnswer,
                                         .world_size = static_cast<uint32_t>(party_.world_size),
                                         .run_id = party_.run_id,
                                         .messages = MessagesFor(connection.rank)});
    }
    // If a rank disconnects now, connecting to it fails later.
    while (!connections_.empty()) {
      if (TimeLeft(deadline_).count() == 0) {
        return Fail(ErrorCode::kUnavailable,
                    fmt::format("rendezvous {}: rank {} does not read its answer", UrlOf(endpoint_),
                                connections_.front().rank));
      }
      CAIRN_TRY(Step());
    }
    return MessagesFor(0);
  }

  std::vector<std::string> MessagesFor(int rank) const {
    std::vector<std::string> messages;
    for (const auto& hello : hellos_) messages.push_back(hello[static_cast<size_t>(rank)]);
    return messages;
  }

  const Endpoint& endpoint_;
  const Party& party_;
  const Deadline deadline_;
  FileDescriptor listener_;
  std::list<Connection> connections_;
  std::vector<std::vector<std::string>> hellos_;  // by rank
  std::vector<bool> present_;                     // has sent a hello and is still connected
  std::vector<bool> has_come_;                    // has ever sent a hello
};

/// Waits for `events`; returns false at the deadline.
bool WaitFor(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd polled{.fd = fd, .events = events, .revents = 0};
    const auto left = TimeLeft(deadline);
    if (::poll(&polled, 1, PollLimit(left)) > 0) return true;
    if (left.count() == 0) return false;
  }
}

/// Tries to connect once; returns no socket if that fails.
FileDescriptor TryConnect(const addrinfo* addresses, Deadline deadline) {
  for (const addrinfo* address = addresses; address; address = address->ai_next) {
    FileDescriptor socket(
        ::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.is_open()) continue;
    if (::connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0) return socket;
    if (errno != EINPROGRESS || !WaitFor(socket.get(), POLLOUT, deadline)) continue;
    int failed = 0;
    socklen_t length = sizeof(failed);
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &length) == 0 && failed == 0) {
      return socket;
    }
  }
  return FileDescriptor();
}

/// Sends the hello and returns the record of rank 0; nothing if it disconnected or the deadline
/// passed.
Result<std::optional<RendezvousRecord>> TryToJoin(const addrinfo* addresses,
                                                  const std::string& hello, uint64_t max_bytes,
                                                  Deadline deadline) {
  const FileDescriptor socket = TryConnect(addresses, deadline);
  if (!socket.is_open()) return std::nullopt;
  size_t sent = 0;
  Progress progress = Progress::kAgain;
  while ((progress = SendSome(socket.get(), hello, sent)) == Progress::kAgain) {
    if (!WaitFor(socket.get(), POLLOUT, deadline)) return std::nullopt;
  }
  if (progress == Progress::kGone) return std::nullopt;
  std::string received;
  while (true) {
    if (!WaitFor(socket.get(), POLLIN, deadline)) return std::nullopt;
    CAIRN_TRY_ASSIGN(progress, ReceiveSome(socket.get(), max_bytes, received));
    if (progress == Progress::kGone) return std::nullopt;
    if (progress == Progress::kDone) break;
  }
  CAIRN_TRY_ASSIGN(auto record, DecodeRecord(received));
  return record;
}

/// Converts the record of rank 0 to the result of this rank.
Result<std::vector<std::string>> Outcome(const Endpoint& endpoint, const Party& party,
                                         RendezvousRecord record) {
  const bool is_answer = record.kind == RendezvousRecord::Kind::kAnswer;
  if (is_answer && record.messages.size() == static_cast<size_t>(party.world_size)) {
    return std::move(record.messages);
  }
  const std::string reason =
      !is_answer && record.messages.size() == 1 ? record.messages[0] : "its answer is invalid";
  if (record.kind == RendezvousRecord::Kind::kTimedOut) {
    return Fail(ErrorCode::kUnavailable,
                fmt::format("rendezvous {}: rank 0 gave up: {}", UrlOf(endpoint), reason));
  }
  return Fail(ErrorCode::kFailedPrecondition,
              fmt::format("rendezvous {}: rank 0 refuses rank {}: {}", UrlOf(endpoint), party.rank,
                          reason));
}

}  // namespace

Result<std::vector<std::string>> ServeTcpMeeting(const Endpoint& endpoint, const Party& party,
                                                 const std::vector<std::string>& messages,
                                                 Deadline deadline) {
  return Meeting(endpoint, party, messages, deadline).Run();
}

Result<std::vector<std::string>> JoinTcpMeeting(const Endpoint& endpoint, const Party& party,
                                                const std::vector<std::string>& messages,
                                                Deadline deadline) {
  CAIRN_TRY_ASSIGN(const AddressList addresses, Resolve(endpoint));
  const std::string hello = EncodeRecord({.rank = static_cast<uint32_t>(party.rank),
                                          .world_size = static_cast<uint32_t>(party.world_size),
                                          .run_id = party.run_id,
                                          .messages = messages});
  while (true) {
    CAIRN_TRY_ASSIGN(auto record,
                     TryToJoin(addresses.get(), hello, MaxRecordBytes(party.world_size), deadline));
    if (record) return Outcome(endpoint, party, *std::move(record));
    if (TimeLeft(deadline).count() == 0) {
      return Fail(ErrorCode::kUnavailable,
                  fmt::format("rendezvous {}: rank {} had no answer from rank 0 in time",
                              UrlOf(endpoint), party.rank));
    }
    // Rank 0 may not listen yet.
    ::poll(nullptr, 0, PollLimit(std::min(kRetryPause, TimeLeft(deadline))));
  }
}

Result<std::string> LocalAddressTowards(const Endpoint& endpoint) {
  CAIRN_TRY_ASSIGN(const AddressList addresses, Resolve(endpoint));
  int failed = 0;
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    // Connecting a datagram socket only chooses the route.
    const FileDescriptor socket(::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    if (socket.is_open() && ::connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0) {
      return InDigits(reinterpret_cast<const sockaddr*>(&own), length);
    }
    failed = errno;
  }
  return Fail(Failed("there is no route", endpoint, failed));
}

Result<std::string> AddressOfThisHost(const std::string& host) {
  CAIRN_TRY_ASSIGN(const AddressList addresses, Resolve({.host = host, .port = "0"}));
  int failed = 0;
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    const FileDescriptor socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket.is_open() && ::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0) {
      return InDigits(address->ai_addr, address->ai_addrlen);
    }
    failed = errno;
  }
  return Fail(SystemError(failed, fmt::format("cannot listen at {}", host)));
}

}  // namespace cairn::core::internal
