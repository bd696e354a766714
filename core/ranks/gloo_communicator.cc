#include "core/ranks/gloo_communicator.h"

#include <fmt/format.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/ranks/gather_values.h"
#include "core/ranks/internal/gloo_group.h"
#include "core/ranks/internal/message_codec.h"
#include "core/ranks/internal/rendezvous.h"
#include "core/ranks/local_communicator.h"
#include "kv/io/file_descriptor.h"
#include "kv/storage/open/open_storage.h"

namespace cairn::core {
namespace {

using gloo::transport::Device;
using internal::Deadline;
using internal::GlooCall;
using internal::GlooGroup;

/// Sequence number of the call that ends connecting; calls of a communicator are numbered from 0.
constexpr uint32_t kConnectingSequence = ~uint32_t{0};
constexpr size_t kMaxRunIdBytes = 128;

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(std::shared_ptr<Device> device, std::unique_ptr<GlooGroup> group,
                   std::chrono::milliseconds timeout)
      : device_(std::move(device)),
        group_(std::move(group)),
        timeout_(timeout),
        next_timeout_(timeout) {}

  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->size(); }
  std::chrono::milliseconds timeout() const override { return timeout_; }

  Result<void> Barrier() override {
    return Run(Operation::kBarrier, [&](const GlooCall& call) { return group_->Barrier(call); });
  }
  Result<void> Broadcast(ByteTarget bytes, int root) override {
    CAIRN_TRY(CheckRoot(Operation::kBroadcast, root));
    return Run(Operation::kBroadcast,
               [&](const GlooCall& call) { return group_->Broadcast(call, bytes, root); });
  }
  Result<void> Exchange(Operation operation, std::span<const ByteView> sent,
                        std::span<const ByteTarget> received) override {
    return Run(operation,
               [&](const GlooCall& call) { return group_->Exchange(call, sent, received); });
  }
  Result<std::unique_ptr<Communicator>> Split(uint32_t color, uint32_t key) override;

  void LimitNextCall(std::chrono::milliseconds timeout) override {
    next_timeout_ = std::min(timeout, timeout_);
  }
  void Interrupt() override { group_->Interrupt(); }
  Result<void> CheckPeers() override { return group_->CheckConnections(); }

 private:
  static size_t Index(int rank) { return static_cast<size_t>(rank); }

  GlooCall NextCall(Operation operation, Deadline deadline) {
    return {.operation = operation, .sequence = sequence_++, .deadline = deadline};
  }

  /// Runs a call with its deadline. An error of `body` breaks the communicator.
  template <typename Body>
  Result<void> Run(Operation operation, Body&& body) {
    CAIRN_TRY(CheckUsable());
    const internal::SigpipeBlock no_sigpipe;
    const auto timeout = std::exchange(next_timeout_, timeout_);
    const GlooCall call = NextCall(operation, std::chrono::steady_clock::now() + timeout);
    Result<void> done = body(call);
    if (done) return {};
    return Fail(Break(OperationName(operation), std::move(done).error()));
  }

  Error Break(const char* call, Error error) {
    group_->Close();
    return Broken(call, std::move(error));
  }

  template <typename T>
  Result<std::vector<T>> AllGatherWithin(Deadline deadline, const T& mine) {
    return GatherValues(world_size(), mine, [&](ByteView own, std::span<const ByteTarget> all) {
      return group_->Exchange(NextCall(Operation::kAllGather, deadline),
                              std::vector<ByteView>(all.size(), own), all);
    });
  }

  /// Steps of Split.
  Result<std::vector<std::string>> ExchangeAddresses(Deadline deadline,
                                                     const std::vector<int>& members,
                                                     const Result<std::unique_ptr<GlooGroup>>& own);
  Result<std::unique_ptr<Communicator>> SplitBy(Deadline deadline, SplitChoice choice);

  const std::shared_ptr<Device> device_;  // shared with the communicators split from this one
  const std::unique_ptr<GlooGroup> group_;
  const std::chrono::milliseconds timeout_;
  std::chrono::milliseconds next_timeout_;
  uint32_t sequence_ = 0;
};

/// An address in a message of fixed length, so that lengths need not be sent. An empty address
/// means that its rank has failed.
struct AddressMessage {
  uint16_t length_bytes = 0;
  std::array<char, internal::kMaxGlooAddressBytes> bytes{};
};

Result<std::vector<std::string>> GlooCommunicator::ExchangeAddresses(
    Deadline deadline, const std::vector<int>& members,
    const Result<std::unique_ptr<GlooGroup>>& own) {
  std::vector<AddressMessage> sent(Index(world_size())), received(sent.size());
  std::vector<ByteView> views(sent.size());
  std::vector<ByteTarget> targets(sent.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const size_t member = Index(members[i]);
    if (own) {
      const std::string& address = (*own)->addresses()[i];
      sent[member].length_bytes = static_cast<uint16_t>(address.size());
      std::ranges::copy(address, sent[member].bytes.begin());
    }
    views[member] = std::as_bytes(std::span(&sent[member], 1));
    targets[member] = std::as_writable_bytes(std::span(&received[member], 1));
  }
  CAIRN_TRY(group_->Exchange(NextCall(Operation::kAllToAll, deadline), views, targets));

  std::vector<std::string> addresses(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == rank()) continue;
    const AddressMessage& message = received[Index(members[i])];
    const size_t length = std::min<size_t>(message.length_bytes, internal::kMaxGlooAddressBytes);
    if (length == 0) {
      return Fail(ErrorCode::kUnavailable, fmt::format("rank {} could not take part", members[i]));
    }
    addresses[i].assign(message.bytes.data(), length);
  }
  return addresses;
}

Result<std::unique_ptr<Communicator>> GlooCommunicator::SplitBy(Deadline deadline,
                                                                SplitChoice choice) {
  CAIRN_TRY_ASSIGN(const auto choices, AllGatherWithin(deadline, choice));
  const std::vector<int> members = RanksOfColor(choices, choice.color);
  const int place = static_cast<int>(std::ranges::find(members, rank()) - members.begin());

  // A rank that fails still takes part in all steps, so that no other rank waits for it.
  auto group = GlooGroup::Listen(device_, place, static_cast<int>(members.size()),
                                 internal::TimeLeft(deadline));
  auto addresses = ExchangeAddresses(deadline, members, group);
  Result<void> connected = {};
  if (!group) {
    connected = std::unexpected(group.error());
  } else if (!addresses) {
    connected = std::unexpected(addresses.error());
  } else {
    connected = (*group)->Connect(*addresses);
  }
  CAIRN_TRY_ASSIGN(const auto verdicts,
                   AllGatherWithin<uint8_t>(deadline, connected.has_value() ? 1 : 0));
  CAIRN_TRY(connected);
  const auto failed = std::ranges::find(verdicts, 0);
  if (failed != verdicts.end()) {
    return Fail(ErrorCode::kUnavailable,
                fmt::format("rank {} did not connect with its group", failed - verdicts.begin()));
  }
  return std::make_unique<GlooCommunicator>(device_, *std::move(group), timeout_);
}

Result<std::unique_ptr<Communicator>> GlooCommunicator::Split(uint32_t color, uint32_t key) {
  CAIRN_TRY(CheckUsable());
  const internal::SigpipeBlock no_sigpipe;
  auto part = SplitBy(std::chrono::steady_clock::now() + timeout_, {.color = color, .key = key});
  if (part) return part;
  return Fail(Break("Split", std::move(part).error()));
}

Result<void> CheckOptions(const GlooOptions& options) {
  const auto invalid = [](std::string message) {
    return Fail(ErrorCode::kInvalidArgument, std::move(message));
  };
  if (options.world_size < 1 || options.world_size > kMaxGlooRanks || options.rank < 0 ||
      options.rank >= options.world_size) {
    return invalid(fmt::format("rank {} of {}: ranks are numbered from 0, and at most {}",
                               options.rank, options.world_size, kMaxGlooRanks));
  }
  if (options.timeout.count() <= 0 || options.connect_timeout.count() <= 0) {
    return invalid(fmt::format("timeouts of {} and {} ms are not both above 0",
                               options.timeout.count(), options.connect_timeout.count()));
  }
  const auto may_be_in_name = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  };
  const std::string& run_id = options.run_id;
  if (run_id.empty() || run_id.size() > kMaxRunIdBytes || run_id.starts_with('.') ||
      !std::ranges::all_of(run_id, may_be_in_name)) {
    return invalid(fmt::format("run id '{}' does not name a directory", run_id));
  }
  return {};
}

/// Returns the numeric form of an address of `host` that `find(resolved, found)` accepts: it writes
/// an address to `found`, and returns its length, or 0 and sets errno. `port` is that of the
/// resolved ones. The resolver of the system has its own time limit.
template <typename Find>
Result<std::string> FindAddress(const std::string& host, const char* port, const char* failure,
                                const Find& find) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* resolved = nullptr;
  int failed = ::getaddrinfo(host.c_str(), port, &hints, &resolved);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(resolved, &::freeaddrinfo);
  if (failed != 0) {
    return Fail(ErrorCode::kUnavailable,
                fmt::format("cannot look up {}: {}", host, ::gai_strerror(failed)));
  }
  for (const addrinfo* address = resolved; address != nullptr; address = address->ai_next) {
    sockaddr_storage found{};
    const socklen_t length = find(*address, found);
    failed = errno;
    char name[NI_MAXHOST];
    if (length > 0 && ::getnameinfo(reinterpret_cast<const sockaddr*>(&found), length, name,
                                    sizeof(name), nullptr, 0, NI_NUMERICHOST) == 0) {
      return std::string(name);
    }
  }
  return Fail(SystemError(failed, fmt::format("{} {}", failure, host)));
}

/// Returns the address of this host on the route to `host`. Sends nothing. kUnavailable: there is
/// no route.
Result<std::string> LocalAddressTowards(const std::string& host) {
  // Connecting a datagram socket only chooses the route; the port has no meaning.
  return FindAddress(host, "1", "there is no route to", [](const addrinfo& to, auto& own) {
    const kv::FileDescriptor socket(::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    socklen_t length = sizeof(own);
    const bool is_found =
        socket.is_open() && ::connect(socket.get(), to.ai_addr, to.ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0;
    return is_found ? length : 0;
  });
}

/// Returns the first address that `host` resolves to and that belongs to this host. kUnavailable:
/// there is none.
Result<std::string> AddressOfThisHost(const std::string& host) {
  return FindAddress(host, "0", "cannot listen at", [](const addrinfo& at, auto& own) {
    const kv::FileDescriptor socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.is_open() || ::bind(socket.get(), at.ai_addr, at.ai_addrlen) != 0) return 0u;
    std::memcpy(&own, at.ai_addr, at.ai_addrlen);
    return at.ai_addrlen;
  });
}

/// Returns an address in numeric form on which this host can listen. Gloo must not get any other:
/// it reads uninitialized memory if it cannot resolve a name, and leaks memory if it cannot listen.
Result<std::string> OwnAddress(const GlooOptions& options) {
  if (!options.interface.empty()) return AddressOfThisHost(options.interface);
  if (!options.route_to.empty()) return LocalAddressTowards(options.route_to);
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) {
    return Fail(SystemError(errno, "cannot get the host's name"));
  }
  return AddressOfThisHost(name);
}

Result<std::shared_ptr<Device>> MakeDevice(const GlooOptions& options) {
  if (!options.interface.empty() && ::if_nametoindex(options.interface.c_str()) != 0) {
    return internal::MakeGlooDevice("", options.interface);
  }
  CAIRN_TRY_ASSIGN(const std::string address, OwnAddress(options));
  return internal::MakeGlooDevice(address, "");
}

/// The objects that connecting creates.
struct Connection {
  std::shared_ptr<Device> device;
  std::unique_ptr<GlooGroup> group;
};

/// Returns the addresses at which the other ranks listen for this one. Collective, even if this
/// rank does not listen: `own` is then an error, and so is the result.
Result<std::vector<std::string>> ExchangeAddresses(const GlooOptions& options,
                                                   const MessageAllGather& all_gather,
                                                   const Result<std::unique_ptr<GlooGroup>>& own) {
  internal::MessageWriter writer;
  if (own) {
    for (const std::string& address : (*own)->addresses()) writer.Text(address);
  }
  const std::vector<std::byte> encoded = std::move(writer).Take();
  const std::string message(reinterpret_cast<const char*>(encoded.data()), encoded.size());
  CAIRN_TRY_ASSIGN(const auto messages, all_gather(message));
  if (!own) return std::unexpected(own.error());
  const auto world_size = static_cast<size_t>(options.world_size);
  if (messages.size() != world_size) {
    return Fail(ErrorCode::kUnavailable, fmt::format("the exchange of addresses returned {} "
                                                     "messages for {} ranks",
                                                     messages.size(), world_size));
  }
  std::vector<std::string> addresses(world_size);
  for (size_t peer = 0; peer < world_size; ++peer) {
    if (peer == static_cast<size_t>(options.rank)) continue;
    internal::MessageReader reader(std::as_bytes(std::span(messages[peer])));
    for (int rank = 0; rank <= options.rank; ++rank) addresses[peer] = reader.Text();
    if (!addresses[peer].empty()) continue;
    return Fail(ErrorCode::kUnavailable, fmt::format("rank {} could not take part", peer));
  }
  return addresses;
}

/// Connects over the channel of the caller, if there is one, otherwise through the rendezvous.
Result<Connection> Connect(const GlooOptions& options) {
  const auto deadline = [&] { return std::chrono::steady_clock::now() + options.connect_timeout; };
  const internal::Party party{
      .rank = options.rank, .world_size = options.world_size, .run_id = options.run_id};
  std::shared_ptr<kv::Storage> storage;
  MessageAllGather meet;
  if (!options.all_gather) {
    CAIRN_TRY_ASSIGN(storage, kv::OpenStorage(options.rendezvous));
    meet = [&, meeting = deadline()](const std::string& message) {
      return internal::Meet(*storage, party, message, meeting);
    };
  }
  // Not a copy: the function of the caller may be one of Python.
  const MessageAllGather& all_gather =
      options.all_gather ? options.all_gather : std::as_const(meet);
  Connection connection;
  const auto listen = [&]() -> Result<std::unique_ptr<GlooGroup>> {
    CAIRN_TRY_ASSIGN(connection.device, MakeDevice(options));
    return GlooGroup::Listen(connection.device, options.rank, options.world_size,
                             options.connect_timeout);
  };
  auto group = listen();
  // Over the channel, the other ranks wait for this one even if it cannot listen.
  if (!group && storage != nullptr) return std::unexpected(group.error());
  CAIRN_TRY_ASSIGN(const auto addresses, ExchangeAddresses(options, all_gather, group));
  connection.group = *std::move(group);
  CAIRN_TRY(connection.group->Connect(addresses));
  // After this barrier all ranks have read the objects of the rendezvous.
  CAIRN_TRY(connection.group->Barrier({.operation = Communicator::Operation::kBarrier,
                                       .sequence = kConnectingSequence,
                                       .deadline = deadline()}));
  if (storage != nullptr && options.rank == 0) CAIRN_TRY(internal::Forget(*storage, party));
  return connection;
}

}  // namespace

Result<std::unique_ptr<Communicator>> ConnectGloo(const GlooOptions& options) {
  CAIRN_TRY(CheckOptions(options));
  if (options.world_size == 1) return std::make_unique<LocalCommunicator>();
  const internal::SigpipeBlock no_sigpipe;
  CAIRN_TRY_ASSIGN(Connection connection, Connect(options));
  return std::make_unique<GlooCommunicator>(std::move(connection.device),
                                            std::move(connection.group), options.timeout);
}

}  // namespace cairn::core
