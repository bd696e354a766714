// Transfers over Gloo's transport.

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
#include <mutex>
#include <new>

namespace cairn::core::internal {
namespace {

using gloo::transport::UnboundBuffer;

/// Gloo begins its messages with "[file:line] " of its own source.
std::string_view WithoutPlace(std::string_view message) {
  const size_t end = message.find("] ");
  return message.starts_with('[') && end != std::string_view::npos ? message.substr(end + 2)
                                                                   : message;
}

/// The one place where Gloo's exceptions become errors.
Error ErrorOf(std::exception_ptr thrown, const std::string& attempted) {
  ErrorCode code = ErrorCode::kInternal;
  std::string found;
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (const gloo::IoException& e) {
    code = ErrorCode::kUnavailable;
    found = WithoutPlace(e.what());
  } catch (const gloo::EnforceNotMet& e) {
    // Also failed calls of the system, as Gloo checks them this way: out of descriptors, no
    // address.
    code = ErrorCode::kUnavailable;
    found = WithoutPlace(e.what());
  } catch (const std::bad_alloc&) {
    code = ErrorCode::kResourceExhausted;
    found = "out of memory";
  } catch (const std::exception& e) {
    found = WithoutPlace(e.what());
  }
  return Error{.code = code, .message = fmt::format("{}: {}", attempted, found)};
}

/// Runs `work`; `attempted` is asked for words only if it throws.
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

uint64_t SlotOf(const GlooCall& call, MessageKind kind, uint64_t length_bytes) {
  return static_cast<uint64_t>(call.sequence) << 32 | static_cast<uint64_t>(call.operation) << 29 |
         static_cast<uint64_t>(kind) << 27 | length_bytes;
}

template <typename Range, typename Function>
Result<void> ForEachPiece(Range bytes, Function&& function) {
  for (uint64_t offset_bytes = 0; offset_bytes < bytes.size(); offset_bytes += kMaxGlooPieceBytes) {
    CAIRN_TRY(function(bytes.subspan(
        offset_bytes, std::min<uint64_t>(kMaxGlooPieceBytes, bytes.size() - offset_bytes))));
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
  // Gloo's thread inherits the mask: the program's signals are not for it.
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

/// Gloo's own context, with the connections made one by one.
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

/// The waits of calls, which another thread may end. Gloo's own way to end one is by buffer.
class GlooGroup::Waits {
 public:
  explicit Waits(Context& context) : context_(context) {}

  void Received(UnboundBuffer& buffer, std::chrono::milliseconds timeout) {
    Begin(buffer);
    const Ending ending(*this);
    if (!buffer.waitRecv(timeout)) Abort();
  }
  void Sent(UnboundBuffer& buffer, std::chrono::milliseconds timeout) {
    Begin(buffer);
    const Ending ending(*this);
    if (!buffer.waitSend(timeout)) Abort();
  }

  void Interrupt() {
    const std::lock_guard lock(mutex_);
    is_interrupted_ = true;
    if (waited_for_ == nullptr) return;
    // Kept by the buffer if the wait has not begun yet.
    waited_for_->abortWaitRecv();
    waited_for_->abortWaitSend();
  }

 private:
  struct Ending {
    explicit Ending(Waits& waits) : waits_(waits) {}
    ~Ending() {
      const std::lock_guard lock(waits_.mutex_);
      waits_.waited_for_ = nullptr;
    }
    Ending(const Ending&) = delete;
    Ending& operator=(const Ending&) = delete;
    Waits& waits_;
  };

  void Begin(UnboundBuffer& buffer) {
    const std::lock_guard lock(mutex_);
    if (is_interrupted_) Abort();
    waited_for_ = &buffer;
  }
  /// As a wait that times out: closed before the buffers of the call go.
  [[noreturn]] void Abort() {
    context_.closeConnections();
    throw gloo::IoException("interrupted on this rank");
  }

  Context& context_;
  std::mutex mutex_;
  // Guarded by mutex_.
  bool is_interrupted_ = false;
  UnboundBuffer* waited_for_ = nullptr;
};

/// A message from each peer that never comes: who waits for it learns that its connection is gone.
class GlooGroup::Watch {
 public:
  explicit Watch(Context& context) : context_(context) {}

  Result<void> Check() {
    const std::lock_guard lock(mutex_);
    for (int peer = 0; peer < context_.size; ++peer) {
      if (peer == context_.rank) continue;
      CAIRN_TRY(Guarded([&] { return fmt::format("the connection to rank {}", peer); },
                        [&] { CheckPeer(peer); }));
    }
    return {};
  }

 private:
  void CheckPeer(int peer) {
    auto& buffer = expected_[peer];
    if (buffer == nullptr) {
      buffer = context_.createUnboundBuffer(nullptr, 0);
      buffer->recv(peer, SlotOf({.operation = GlooOperation::kWatch, .deadline = {}},
                                MessageKind::kBytes, 0));
    }
    // A wait that has been given up before it begins throws what has broken, and else returns.
    buffer->abortWaitRecv();
    (void)buffer->waitRecv(std::chrono::milliseconds(1));
  }

  Context& context_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<UnboundBuffer>> expected_;  // guarded by mutex_
};

/// The pieces of one call: those on their way in, and those on their way out.
class GlooGroup::Transfers {
 public:
  Transfers(Context& context, Waits& waits, const GlooCall& call)
      : context_(context), waits_(waits), call_(call) {}

  /// Asks for a piece. `Finish*` what was begun; after an error the group is closed.
  Result<size_t> BeginReceive(int peer, ByteTarget piece) {
    Piece& begun = incoming_.emplace_back(peer, piece.size());
    CAIRN_TRY(Guarded([&] { return Attempted("receiving", begun); },
                      [&] {
                        begun.bytes = Buffer(piece.data(), piece.size());
                        begun.bytes->recv(peer, Slot(MessageKind::kBytes, begun));
                        if (!begun.is_guarded()) return;
                        begun.guard = Buffer(nullptr, 0);
                        begun.guard->recv(peer, Slot(MessageKind::kGuard, begun));
                        begun.receipt = Buffer(nullptr, 0);
                      }));
    return incoming_.size() - 1;
  }

  Result<void> BeginSend(int peer, ByteView piece) {
    Piece& begun = outgoing_.emplace_back(peer, piece.size());
    return Guarded([&] { return Attempted("sending", begun); },
                   [&] {
                     // Asked for before the bytes leave, so that the peer can send it at once.
                     if (begun.is_guarded()) {
                       begun.receipt = Buffer(nullptr, 0);
                       begun.receipt->recv(peer, Slot(MessageKind::kReceipt, begun));
                     }
                     // Gloo reads only; its buffers are for both ways.
                     begun.bytes = Buffer(const_cast<std::byte*>(piece.data()), piece.size());
                     begun.bytes->send(peer, Slot(MessageKind::kBytes, begun));
                     if (!begun.is_guarded()) return;
                     begun.guard = Buffer(nullptr, 0);
                     begun.guard->send(peer, Slot(MessageKind::kGuard, begun));
                   });
  }

  Result<void> FinishReceive(size_t index) {
    Piece& piece = incoming_[index];
    return Guarded([&] { return Attempted("receiving", piece); },
                   [&] {
                     if (piece.is_guarded()) WaitReceived(*piece.guard);
                     WaitReceived(*piece.bytes);
                     if (piece.is_guarded()) {
                       piece.receipt->send(piece.peer, Slot(MessageKind::kReceipt, piece));
                     }
                   });
  }

  /// Of everything that was begun to be sent, and of receipts.
  Result<void> FinishSends() {
    for (Piece& piece : outgoing_) {
      CAIRN_TRY(Guarded([&] { return Attempted("sending", piece); },
                        [&] {
                          if (piece.is_guarded()) {
                            WaitReceived(*piece.receipt);
                            WaitSent(*piece.guard);
                          }
                          WaitSent(*piece.bytes);
                        }));
    }
    for (Piece& piece : incoming_) {
      if (!piece.is_guarded()) continue;
      CAIRN_TRY(Guarded([&] { return Attempted("receiving", piece); },
                        [&] { WaitSent(*piece.receipt); }));
    }
    return {};
  }

  size_t incoming_count() const { return incoming_.size(); }

 private:
  struct Piece {
    Piece(int from_or_to, uint64_t length) : peer(from_or_to), length_bytes(length) {}
    bool is_guarded() const { return length_bytes > kUnguardedBytes; }

    int peer;
    uint64_t length_bytes;
    std::unique_ptr<UnboundBuffer> bytes;
    std::unique_ptr<UnboundBuffer> guard;
    std::unique_ptr<UnboundBuffer> receipt;
  };

  static std::string Attempted(const char* verb, const Piece& piece) {
    const bool receiving = verb[0] == 'r';
    return fmt::format("{} {} bytes {} rank {}", verb, piece.length_bytes,
                       receiving ? "from" : "to", piece.peer);
  }
  std::unique_ptr<UnboundBuffer> Buffer(std::byte* bytes, uint64_t length_bytes) {
    return context_.createUnboundBuffer(bytes, length_bytes);
  }
  uint64_t Slot(MessageKind kind, const Piece& piece) const {
    return SlotOf(call_, kind, piece.length_bytes);
  }
  void WaitReceived(UnboundBuffer& buffer) { waits_.Received(buffer, TimeLeft(call_.deadline)); }
  void WaitSent(UnboundBuffer& buffer) { waits_.Sent(buffer, TimeLeft(call_.deadline)); }

  Context& context_;
  Waits& waits_;
  const GlooCall& call_;
  std::vector<Piece> incoming_;
  std::vector<Piece> outgoing_;
};

GlooGroup::GlooGroup(std::shared_ptr<Context> context)
    : context_(std::move(context)),
      waits_(std::make_unique<Waits>(*context_)),
      watch_(std::make_unique<Watch>(*context_)) {}

GlooGroup::~GlooGroup() = default;

int GlooGroup::rank() const { return context_->rank; }

int GlooGroup::size() const { return context_->size; }

Result<std::unique_ptr<GlooGroup>> GlooGroup::Listen(
    std::shared_ptr<gloo::transport::Device> device, int rank, int size,
    std::chrono::milliseconds timeout) {
  // Gloo lets a first connection take five times what it is told (tcp/pair.cc).
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
                        CAIRN_CHECK(address.size() <= kMaxPieceBytes);
                      }
                    }));
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

Result<void> GlooGroup::Exchange(const GlooCall& call, const std::vector<Send>& sends,
                                 const std::vector<Receive>& receives) {
  Transfers transfers(*context_, *waits_, call);
  for (const Receive& receive : receives) {
    CAIRN_TRY(ForEachPiece(receive.bytes, [&](ByteTarget piece) -> Result<void> {
      CAIRN_TRY(transfers.BeginReceive(receive.peer, piece));
      return {};
    }));
  }
  for (const Send& send : sends) {
    CAIRN_TRY(ForEachPiece(send.bytes,
                           [&](ByteView piece) { return transfers.BeginSend(send.peer, piece); }));
  }
  for (size_t i = 0; i < transfers.incoming_count(); ++i) CAIRN_TRY(transfers.FinishReceive(i));
  return transfers.FinishSends();
}

Result<void> GlooGroup::Barrier(const GlooCall& call) {
  for (int distance = 1; distance < size(); distance *= 2) {
    Transfers transfers(*context_, *waits_, call);
    CAIRN_TRY_ASSIGN(const size_t heard,
                     transfers.BeginReceive((rank() - distance + size()) % size(), {}));
    CAIRN_TRY(transfers.BeginSend((rank() + distance) % size(), {}));
    CAIRN_TRY(transfers.FinishReceive(heard));
    CAIRN_TRY(transfers.FinishSends());
  }
  return {};
}

Result<void> GlooGroup::Broadcast(const GlooCall& call, ByteTarget bytes, int root) {
  // Numbered from the root, rank v hears of v without its lowest bit, and tells v + 2^k for each
  // 2^k below that bit, the farthest first, as it has most to pass on.
  const int place = (rank() - root + size()) % size();
  const auto rank_at = [&](int other) { return (other + root) % size(); };
  int lowest_bit = 1;
  while (lowest_bit < size() && (place & lowest_bit) == 0) lowest_bit *= 2;

  Transfers transfers(*context_, *waits_, call);
  if (place != 0) {
    CAIRN_TRY(ForEachPiece(bytes, [&](ByteTarget piece) -> Result<void> {
      CAIRN_TRY(transfers.BeginReceive(rank_at(place - lowest_bit), piece));
      return {};
    }));
  }
  size_t index = 0;
  CAIRN_TRY(ForEachPiece(bytes, [&](ByteTarget piece) -> Result<void> {
    if (place != 0) CAIRN_TRY(transfers.FinishReceive(index++));
    for (int distance = lowest_bit / 2; distance > 0; distance /= 2) {
      if (place + distance < size()) {
        CAIRN_TRY(transfers.BeginSend(rank_at(place + distance), piece));
      }
    }
    return {};
  }));
  return transfers.FinishSends();
}

void GlooGroup::Interrupt() { waits_->Interrupt(); }

Result<void> GlooGroup::CheckConnections() {
  const SigpipeBlock no_sigpipe;
  return watch_->Check();
}

void GlooGroup::Close() {
  SigpipeBlock no_sigpipe;
  // Nothing is left to be done about an error here: the group is given up.
  (void)Guarded([] { return std::string(); }, [&] { context_->closeConnections(); });
}

}  // namespace cairn::core::internal
