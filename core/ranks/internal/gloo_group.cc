#include "core/ranks/internal/gloo_group.h"

#include <fmt/format.h>
#include <gloo/common/error.h>
#include <gloo/common/logging.h>
#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <exception>
#include <map>
#include <new>
#include <set>
#include <thread>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"

namespace cairn::core::internal {
namespace {

using gloo::transport::UnboundBuffer;

/// Removes the "[file:line] " at the beginning of Gloo's messages.
std::string_view WithoutSourceLocation(std::string_view message) {
  const size_t end = message.find("] ");
  return message.starts_with('[') && end != std::string_view::npos ? message.substr(end + 2)
                                                                   : message;
}

/// Converts an exception of Gloo to an error; nothing else does.
Error ErrorOf(std::exception_ptr thrown, const std::string& attempted) {
  ErrorCode code = ErrorCode::kInternal;
  std::string found;
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (const gloo::IoException& e) {
    code = ErrorCode::kUnavailable;
    found = WithoutSourceLocation(e.what());
  } catch (const gloo::EnforceNotMet& e) {
    // Gloo also throws this if a system call fails, for example without free descriptors.
    code = ErrorCode::kUnavailable;
    found = WithoutSourceLocation(e.what());
  } catch (const std::bad_alloc&) {
    code = ErrorCode::kResourceExhausted;
    found = "out of memory";
  } catch (const std::exception& e) {
    found = WithoutSourceLocation(e.what());
  }
  return Error{.code = code, .message = fmt::format("{}: {}", attempted, found)};
}

/// Runs `work`, and converts an exception to an error. Calls `attempted` only in that case.
template <typename Work, typename Attempted>
Result<void> Guarded(Attempted&& attempted, Work&& work) {
  try {
    work();
    return {};
  } catch (...) {
    return Fail(ErrorOf(std::current_exception(), attempted()));
  }
}

enum class MessageKind : uint64_t { kBytes, kGuard, kReceipt };

/// The slot of messages that are never sent (Waits::Check): no call has the number.
constexpr uint64_t kWatchSlot = uint64_t{7} << 29;

uint64_t SlotOf(const GlooCall& call, MessageKind kind, uint64_t length_bytes) {
  return static_cast<uint64_t>(call.sequence) << 32 | static_cast<uint64_t>(call.operation) << 29 |
         static_cast<uint64_t>(kind) << 27 | length_bytes;
}

template <typename Range, typename Function>
Result<void> ForEachPart(Range bytes, Function&& function) {
  for (uint64_t offset_bytes = 0; offset_bytes < bytes.size(); offset_bytes += kMaxGlooPartBytes) {
    CAIRN_TRY(function(bytes.subspan(
        offset_bytes, std::min<uint64_t>(kMaxGlooPartBytes, bytes.size() - offset_bytes))));
  }
  return {};
}

}  // namespace

SigpipeBlock::SigpipeBlock() {
  sigset_t pipe, old;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &old);
  was_blocked_ = sigismember(&old, SIGPIPE) == 1;
}

SigpipeBlock::~SigpipeBlock() {
  if (was_blocked_) return;
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  const timespec at_once{};
  while (sigtimedwait(&pipe, nullptr, &at_once) == SIGPIPE) {
  }
  pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
}

Result<std::shared_ptr<gloo::transport::Device>> MakeGlooDevice(const std::string& address,
                                                                const std::string& interface) {
  // Gloo's thread inherits the mask, so that it does not receive the signals of the program.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  std::shared_ptr<gloo::transport::Device> device;
  Result<void> made = Guarded(
      [&] { return fmt::format("cannot listen at '{}'", interface.empty() ? address : interface); },
      [&] {
        gloo::transport::tcp::attr attributes(address.c_str());
        attributes.iface = interface;
        device = gloo::transport::tcp::CreateDevice(attributes);
      });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  CAIRN_TRY(made);
  return device;
}

/// Gloo's context, with functions that create the connections one by one.
class GlooGroup::Context final : public gloo::Context {
 public:
  Context(std::shared_ptr<gloo::transport::Device> device, int rank, int size,
          std::chrono::milliseconds timeout)
      : gloo::Context(rank, size) {
    setTimeout(timeout);
    device_ = std::move(device);
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(timeout);
  }

  std::string Listen(int peer) {
    const std::vector<char> address = transportContext_->createPair(peer)->address().bytes();
    return {address.begin(), address.end()};
  }
  void Connect(int peer, const std::string& address) {
    getPair(peer)->connect({address.begin(), address.end()});
  }
};

/// Waits of one call at a time, which other threads can end, and which notice broken connections.
/// Gloo can end the wait for a buffer only. Each function throws gloo::IoException if the
/// connection is closed, if the deadline has passed (then Gloo closes all connections of the
/// context), or after Interrupt.
class GlooGroup::Waits {
 public:
  explicit Waits(Context& context) : context_(context) {}
  ~Waits() {
    {
      const MutexLock lock(mutex_);
      is_ended_ = true;
    }
    changed_.NotifyAll();
    if (waker_.joinable()) waker_.join();
  }

  /// Before all other calls. kResourceExhausted: no thread can be started.
  Result<void> Start() {
    CAIRN_TRY_ASSIGN(waker_,
                     kv::StartThread("the waits for other ranks", [this] { WakeSender(); }));
    return {};
  }

  void Received(UnboundBuffer& buffer, Deadline deadline) {
    const Waiting waiting(*this, buffer, /*sends=*/false);
    if (!buffer.waitRecv(TimeLeft(deadline))) Abort();
  }
  /// Looks regularly whether the connection to `peer` is closed: Gloo does not wake the sender if
  /// it finds this out while it begins to send what the peer has just requested.
  void Sent(UnboundBuffer& buffer, int peer, Deadline deadline) {
    const Waiting waiting(*this, buffer, /*sends=*/true);
    while (!buffer.waitSend(TimeLeft(deadline))) {
      if (is_interrupted()) Abort();
      Check(peer);
    }
  }

  /// Throws if the connection to the peer is closed: requests a message from it that is never sent,
  /// and a wait for it fails if the connection is closed. Does not wait. Threads: any.
  void Check(int peer) {
    const MutexLock lock(watching_);
    auto& buffer = expected_[peer];
    if (buffer == nullptr) {
      buffer = context_.createUnboundBuffer(nullptr, 0);
      buffer->recv(peer, kWatchSlot);
    }
    // A wait that was aborted before it begins throws if the connection is broken, and returns
    // otherwise.
    buffer->abortWaitRecv();
    (void)buffer->waitRecv(std::chrono::milliseconds(1));
  }
  /// Ends the wait, and every later one. Threads: any.
  void Interrupt() {
    const MutexLock lock(mutex_);
    is_interrupted_ = true;
    if (waited_for_ == nullptr) return;
    // If the wait has not begun yet, the buffer remembers this.
    waited_for_->abortWaitRecv();
    waited_for_->abortWaitSend();
  }

 private:
  static constexpr std::chrono::milliseconds kCheckInterval{250};

  /// A wait for `buffer`, which Interrupt can end.
  struct Waiting {
    Waiting(Waits& waits_in, UnboundBuffer& buffer, bool sends) : waits(waits_in) {
      if (!waits.Begin(buffer, sends)) waits.Abort();
    }
    ~Waiting() {
      const MutexLock lock(waits.mutex_);
      waits.waited_for_ = nullptr;
    }
    Waits& waits;
  };

  /// Returns false after Interrupt.
  bool Begin(UnboundBuffer& buffer, bool sends) {
    const MutexLock lock(mutex_);
    if (is_interrupted_) return false;
    waited_for_ = &buffer;
    sends_ = sends;
    ++wait_count_;
    return true;
  }
  /// Closes the connections before the buffers of the call are destroyed, like a wait that times
  /// out.
  [[noreturn]] void Abort() {
    context_.closeConnections();
    throw gloo::IoException("interrupted on this rank");
  }
  bool is_interrupted() const {
    const MutexLock lock(mutex_);
    return is_interrupted_;
  }
  /// Wakes a thread that has waited long for a send, so that it checks the connection.
  void WakeSender() {
    const MutexLock lock(mutex_);
    while (!is_ended_) {
      const uint64_t wait = wait_count_;
      changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + kCheckInterval);
      if (waited_for_ != nullptr && sends_ && wait_count_ == wait) waited_for_->abortWaitSend();
    }
  }

  Context& context_;
  Mutex watching_;
  std::map<int, std::unique_ptr<UnboundBuffer>> expected_ CAIRN_GUARDED_BY(watching_);  // by peer
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_interrupted_ CAIRN_GUARDED_BY(mutex_) = false;
  bool is_ended_ CAIRN_GUARDED_BY(mutex_) = false;
  bool sends_ CAIRN_GUARDED_BY(mutex_) = false;
  uint64_t wait_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  UnboundBuffer* waited_for_ CAIRN_GUARDED_BY(mutex_) = nullptr;
  std::thread waker_;  // runs WakeSender, from Start on
};

/// The parts of ranges that one call receives and sends.
class GlooGroup::Transfers {
 public:
  Transfers(Context& context, Waits& waits, const GlooCall& call)
      : context_(context), waits_(waits), call_(call) {}

  /// Begin a transfer, which FinishReceive or FinishSends completes. After an error, the caller
  /// closes the group.
  Result<void> BeginReceive(int peer, ByteTarget part) {
    Part& begun = incoming_.emplace_back(peer, part.size());
    return Guarded([&] { return Attempted("receiving", begun); },
                   [&] {
                     begun.bytes = Buffer(part.data(), part.size());
                     begun.bytes->recv(peer, Slot(MessageKind::kBytes, begun));
                     if (!begun.is_guarded()) return;
                     begun.guard = Buffer(nullptr, 0);
                     begun.guard->recv(peer, Slot(MessageKind::kGuard, begun));
                     begun.receipt = Buffer(nullptr, 0);
                   });
  }

  Result<void> BeginSend(int peer, ByteView part) {
    Part& begun = outgoing_.emplace_back(peer, part.size());
    return Guarded([&] { return Attempted("sending", begun); },
                   [&] {
                     // Requested before the bytes are sent, so that the peer can send it at once.
                     if (begun.is_guarded()) {
                       begun.receipt = Buffer(nullptr, 0);
                       begun.receipt->recv(peer, Slot(MessageKind::kReceipt, begun));
                     }
                     // Gloo only reads it, but its buffers are for both directions.
                     begun.bytes = Buffer(const_cast<std::byte*>(part.data()), part.size());
                     begun.bytes->send(peer, Slot(MessageKind::kBytes, begun));
                     if (!begun.is_guarded()) return;
                     begun.guard = Buffer(nullptr, 0);
                     begun.guard->send(peer, Slot(MessageKind::kGuard, begun));
                   });
  }

  Result<void> FinishReceive(size_t index) {
    Part& part = incoming_[index];
    return Guarded([&] { return Attempted("receiving", part); },
                   [&] {
                     if (part.is_guarded()) WaitReceived(*part.guard);
                     WaitReceived(*part.bytes);
                     if (part.is_guarded()) {
                       part.receipt->send(part.peer, Slot(MessageKind::kReceipt, part));
                     }
                   });
  }

  /// Completes all parts that BeginSend has begun, and the receipts of received ones.
  Result<void> FinishSends() {
    for (Part& part : outgoing_) {
      CAIRN_TRY(Guarded([&] { return Attempted("sending", part); },
                        [&] {
                          if (part.is_guarded()) {
                            WaitReceived(*part.receipt);
                            WaitSent(*part.guard, part);
                          }
                          WaitSent(*part.bytes, part);
                        }));
    }
    for (Part& part : incoming_) {
      if (!part.is_guarded()) continue;
      CAIRN_TRY(Guarded([&] { return Attempted("receiving", part); },
                        [&] { WaitSent(*part.receipt, part); }));
    }
    return {};
  }

  size_t incoming_count() const { return incoming_.size(); }

  /// Returns which ranks have sent nothing, after the error of a receive: those ranks have not made
  /// the call, or have failed. Closes the group.
  std::string DescribeAbsent(size_t failed) {
    std::set<int> absent = {incoming_[failed].peer};
    for (size_t i = failed + 1; i < incoming_.size(); ++i) {
      // Does not wait, and succeeds for a buffer that has been filled.
      const auto begun =
          Guarded([] { return std::string(); },
                  [&] {
                    const Part& part = incoming_[i];
                    waits_.Received(part.is_guarded() ? *part.guard : *part.bytes, Deadline());
                  });
      if (!begun) absent.insert(incoming_[i].peer);
    }
    return fmt::format(" ({} not made this call)",
                       absent.size() == 1 ? fmt::format("rank {} has", *absent.begin())
                                          : fmt::format("ranks {} have", fmt::join(absent, ", ")));
  }

 private:
  struct Part {
    Part(int from_or_to, uint64_t length) : peer(from_or_to), length_bytes(length) {}
    bool is_guarded() const { return length_bytes > kUnguardedBytes; }

    int peer;
    uint64_t length_bytes;
    std::unique_ptr<UnboundBuffer> bytes;
    std::unique_ptr<UnboundBuffer> guard;
    std::unique_ptr<UnboundBuffer> receipt;
  };

  static std::string Attempted(const char* verb, const Part& part) {
    const bool receiving = verb[0] == 'r';
    return fmt::format("{} {} bytes {} rank {}", verb, part.length_bytes, receiving ? "from" : "to",
                       part.peer);
  }
  std::unique_ptr<UnboundBuffer> Buffer(std::byte* bytes, uint64_t length_bytes) {
    return context_.createUnboundBuffer(bytes, length_bytes);
  }
  uint64_t Slot(MessageKind kind, const Part& part) const {
    return SlotOf(call_, kind, part.length_bytes);
  }
  void WaitReceived(UnboundBuffer& buffer) { waits_.Received(buffer, call_.deadline); }
  void WaitSent(UnboundBuffer& buffer, const Part& part) {
    waits_.Sent(buffer, part.peer, call_.deadline);
  }

  Context& context_;
  Waits& waits_;
  const GlooCall& call_;
  std::vector<Part> incoming_;
  std::vector<Part> outgoing_;
};

GlooGroup::GlooGroup(std::shared_ptr<Context> context)
    : context_(std::move(context)), waits_(std::make_unique<Waits>(*context_)) {}

GlooGroup::~GlooGroup() = default;

int GlooGroup::rank() const { return context_->rank; }

int GlooGroup::size() const { return context_->size; }

Result<std::unique_ptr<GlooGroup>> GlooGroup::Listen(
    std::shared_ptr<gloo::transport::Device> device, int rank, int size,
    std::chrono::milliseconds timeout) {
  // Gloo multiplies the timeout of a first connection by five (tcp/pair.cc).
  constexpr int kGlooPatience = 5;
  const auto per_wait = std::max(timeout / kGlooPatience, std::chrono::milliseconds(1));
  std::unique_ptr<GlooGroup> group;
  CAIRN_TRY(Guarded([&] { return fmt::format("cannot listen for {} ranks", size - 1); },
                    [&] {
                      group.reset(new GlooGroup(
                          std::make_shared<Context>(std::move(device), rank, size, per_wait)));
                      group->addresses_.resize(static_cast<size_t>(size));
                      for (int peer = 0; peer < size; ++peer) {
                        if (peer == rank) continue;
                        std::string& address = group->addresses_[static_cast<size_t>(peer)];
                        address = group->context_->Listen(peer);
                        CAIRN_CHECK(address.size() <= kMaxGlooAddressBytes);
                      }
                    }));
  CAIRN_TRY(group->waits_->Start());
  return group;
}

Result<void> GlooGroup::Connect(const std::vector<std::string>& addresses) {
  CAIRN_CHECK(addresses.size() == static_cast<size_t>(size()));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    CAIRN_TRY(Guarded([&] { return fmt::format("connecting with rank {}", peer); },
                      [&] { context_->Connect(peer, addresses[static_cast<size_t>(peer)]); }));
  }
  return {};
}

Result<void> GlooGroup::Exchange(const GlooCall& call, std::span<const ByteView> sent,
                                 std::span<const ByteTarget> received) {
  const auto own = static_cast<size_t>(rank());
  std::ranges::copy(sent[own], received[own].begin());
  Transfers transfers(*context_, *waits_, call);
  // Both start with the next rank, so that not all ranks send to rank 0 first.
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    CAIRN_TRY(ForEachPart(received[static_cast<size_t>(peer)],
                          [&](ByteTarget part) { return transfers.BeginReceive(peer, part); }));
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    CAIRN_TRY(ForEachPart(sent[static_cast<size_t>(peer)],
                          [&](ByteView part) { return transfers.BeginSend(peer, part); }));
  }
  for (size_t i = 0; i < transfers.incoming_count(); ++i) {
    Result<void> done = transfers.FinishReceive(i);
    if (done) continue;
    Error error = std::move(done).error();
    // A rank whose connection is closed may have made the call.
    if (TimeLeft(call.deadline).count() == 0) error.message += transfers.DescribeAbsent(i);
    return Fail(std::move(error));
  }
  return transfers.FinishSends();
}

Result<void> GlooGroup::Barrier(const GlooCall& call) {
  for (int distance = 1; distance < size(); distance *= 2) {
    Transfers transfers(*context_, *waits_, call);
    CAIRN_TRY(transfers.BeginReceive((rank() - distance + size()) % size(), {}));
    CAIRN_TRY(transfers.BeginSend((rank() + distance) % size(), {}));
    CAIRN_TRY(transfers.FinishReceive(0));
    CAIRN_TRY(transfers.FinishSends());
  }
  return {};
}

Result<void> GlooGroup::Broadcast(const GlooCall& call, ByteTarget bytes, int root) {
  // With ranks numbered from the root, rank v receives from v without its lowest bit, and sends to
  // v + 2^k for each 2^k below that bit; the farthest first, because it forwards to the most ranks.
  const int place = (rank() - root + size()) % size();
  const auto rank_at = [&](int other) { return (other + root) % size(); };
  int lowest_bit = 1;
  while (lowest_bit < size() && (place & lowest_bit) == 0) lowest_bit *= 2;

  Transfers transfers(*context_, *waits_, call);
  if (place != 0) {
    CAIRN_TRY(ForEachPart(bytes, [&](ByteTarget part) {
      return transfers.BeginReceive(rank_at(place - lowest_bit), part);
    }));
  }
  size_t index = 0;
  CAIRN_TRY(ForEachPart(bytes, [&](ByteTarget part) -> Result<void> {
    if (place != 0) CAIRN_TRY(transfers.FinishReceive(index++));
    for (int distance = lowest_bit / 2; distance > 0; distance /= 2) {
      if (place + distance < size()) {
        CAIRN_TRY(transfers.BeginSend(rank_at(place + distance), part));
      }
    }
    return {};
  }));
  return transfers.FinishSends();
}

void GlooGroup::Interrupt() { waits_->Interrupt(); }

Result<void> GlooGroup::CheckConnections() {
  const SigpipeBlock no_sigpipe;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    CAIRN_TRY(Guarded([&] { return fmt::format("the connection to rank {}", peer); },
                      [&] { waits_->Check(peer); }));
  }
  return {};
}

void GlooGroup::Close() {
  SigpipeBlock no_sigpipe;
  // An error has no consequences, because the group is no longer used.
  (void)Guarded([] { return std::string(); }, [&] { context_->closeConnections(); });
}

}  // namespace cairn::core::internal
