#pragma once
/// Ranks that are threads of one process: thousands of cases per second, with any world size.
///
///   RunRanks(4, [](core::Communicator& communicator) { ... });

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/ranks/communicator.h"
#include "core/ranks/gather_values.h"
#include "kv/base/mutex.h"

namespace cairn::testing {

/// Implements core/ranks/communicator.h by copying from the senders' memory while all ranks are
/// inside the call. `Interrupt` breaks the communicator of all ranks at once, but not those split
/// from it. Threads: one per rank.
class ThreadCommunicator : public core::Communicator {
 public:
  /// The state that the ranks of one communicator share.
  struct Shared {
    explicit Shared(int world_size_in, std::chrono::milliseconds timeout_in)
        : world_size(world_size_in),
          timeout(timeout_in),
          operations(static_cast<size_t>(world_size_in)),
          sent(static_cast<size_t>(world_size_in)) {}

    const int world_size;
    const std::chrono::milliseconds timeout;
    Mutex mutex;
    CondVar changed;
    int inside CAIRN_GUARDED_BY(mutex) = 0;
    uint64_t round CAIRN_GUARDED_BY(mutex) = 0;
    bool broken CAIRN_GUARDED_BY(mutex) = false;
    bool disagreed CAIRN_GUARDED_BY(mutex) = false;  // on what to call, or on a length
    // Each rank writes its own entry under mutex. All read them, without it, between two meetings.
    std::vector<Operation> operations;              // by rank: what it calls
    std::vector<std::vector<core::ByteView>> sent;  // by sender, by receiver
    std::map<std::pair<uint64_t, uint32_t>, std::shared_ptr<Shared>> parts
        CAIRN_GUARDED_BY(mutex);  // by the number of the split, and by color
  };

  ThreadCommunicator(std::shared_ptr<Shared> shared, int rank)
      : shared_(std::move(shared)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return shared_->world_size; }
  std::chrono::milliseconds timeout() const override { return shared_->timeout; }

  Result<void> Barrier() override {
    CAIRN_TRY(Meet("Barrier"));
    return {};
  }
  Result<void> Broadcast(core::ByteTarget bytes, int root) override {
    CAIRN_TRY(CheckRoot(Operation::kBroadcast, root));
    std::vector<core::ByteView> sent(Count());
    std::vector<core::ByteTarget> received(Count());
    if (rank_ == root) {
      sent.assign(Count(), bytes);
      sent[static_cast<size_t>(root)] = {};
    } else {
      received[static_cast<size_t>(root)] = bytes;
    }
    return Exchange(Operation::kBroadcast, sent, received);
  }
  Result<void> Exchange(Operation operation, std::span<const core::ByteView> sent,
                        std::span<const core::ByteTarget> received) override {
    const char* const name = core::OperationName(operation);
    {
      const MutexLock lock(shared_->mutex);
      shared_->sent[static_cast<size_t>(rank_)] = {sent.begin(), sent.end()};
      shared_->operations[static_cast<size_t>(rank_)] = operation;
    }
    CAIRN_TRY(Meet(name));
    bool agreed = true;
    for (size_t from = 0; from < Count(); ++from) {
      agreed &= shared_->operations[from] == operation &&
                shared_->sent[from][static_cast<size_t>(rank_)].size() == received[from].size();
    }
    for (size_t from = 0; agreed && from < Count(); ++from) {
      const core::ByteView bytes = shared_->sent[from][static_cast<size_t>(rank_)];
      if (!bytes.empty()) std::memcpy(received[from].data(), bytes.data(), bytes.size());
    }
    if (!agreed) {
      const MutexLock lock(shared_->mutex);
      shared_->disagreed = true;
    }
    // No rank leaves before all others have copied from its memory.
    CAIRN_TRY(Meet(name));
    const MutexLock lock(shared_->mutex);
    if (!shared_->disagreed) return {};
    shared_->broken = true;
    return Fail(ErrorCode::kUnavailable, std::string(name) + ": ranks called different things");
  }

  Result<std::unique_ptr<core::Communicator>> Split(uint32_t color, uint32_t key) override {
    const core::SplitChoice own{.color = color, .key = key};
    CAIRN_TRY_ASSIGN(const auto choices, core::AllGatherValues(*this, own));
    const std::vector<int> members = core::RanksOfColor(choices, color);
    const auto place = std::ranges::find(members, rank_) - members.begin();
    const MutexLock lock(shared_->mutex);
    auto& part = shared_->parts[{splits_++, color}];
    if (part == nullptr) {
      part = std::make_shared<Shared>(static_cast<int>(members.size()), shared_->timeout);
    }
    return std::make_unique<ThreadCommunicator>(part, static_cast<int>(place));
  }

  void Interrupt() override {
    const MutexLock lock(shared_->mutex);
    is_interrupted_ = true;
    shared_->broken = true;
    shared_->changed.NotifyAll();
  }
  // No rank of one process can be gone.
  Result<void> CheckPeers() override { return {}; }

 private:
  size_t Count() const { return static_cast<size_t>(shared_->world_size); }

  // Only the first call after an interrupt reports it.
  Result<void> Interrupted(const char* operation) CAIRN_REQUIRES(shared_->mutex) {
    is_interrupted_ = false;
    return Fail(ErrorCode::kUnavailable, std::string(operation) + ": interrupted on this rank");
  }

  // Waits until all ranks have called it.
  Result<void> Meet(const char* operation) {
    const MutexLock lock(shared_->mutex);
    if (is_interrupted_) return Interrupted(operation);
    if (shared_->broken) {
      return Fail(ErrorCode::kFailedPrecondition, "the communicator is broken");
    }
    const uint64_t round = shared_->round;
    if (++shared_->inside == shared_->world_size) {
      shared_->inside = 0;
      ++shared_->round;
      shared_->changed.NotifyAll();
      return {};
    }
    const auto deadline = std::chrono::steady_clock::now() + shared_->timeout;
    bool is_late = false;
    while (!is_late && shared_->round == round && !shared_->broken) {
      is_late = !shared_->changed.WaitUntil(shared_->mutex, deadline);
    }
    if (shared_->round != round) return {};
    shared_->broken = true;
    shared_->changed.NotifyAll();
    if (is_interrupted_) return Interrupted(operation);
    return Fail(ErrorCode::kUnavailable,
                std::string(operation) + ": a rank did not arrive in time");
  }

  const std::shared_ptr<Shared> shared_;  // owned by all ranks
  const int rank_;
  uint64_t splits_ = 0;
  bool is_interrupted_ CAIRN_GUARDED_BY(shared_->mutex) = false;
};

/// Runs `body` once per rank, each on its own thread, and waits for all.
inline void RunRanks(int world_size, const std::function<void(core::Communicator&)>& body,
                     std::chrono::milliseconds timeout = std::chrono::seconds(300)) {
  const auto shared = std::make_shared<ThreadCommunicator::Shared>(world_size, timeout);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.emplace_back([&, rank] {
      ThreadCommunicator communicator(shared, rank);
      body(communicator);
    });
  }
}

}  // namespace cairn::testing
