#pragma once
/// Ranks that are threads of one process: thousands of cases per second, with any world size.
///
///   RunRanks(4, [](core::Communicator& communicator) { ... });

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
#include "core/ranks/communicator_arguments.h"
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
          tags(world_size_in),
          sent(world_size_in) {}

    const int world_size;
    const std::chrono::milliseconds timeout;
    Mutex mutex;
    CondVar changed;
    int inside CAIRN_GUARDED_BY(mutex) = 0;
    uint64_t round CAIRN_GUARDED_BY(mutex) = 0;
    bool broken CAIRN_GUARDED_BY(mutex) = false;
    bool disagreed CAIRN_GUARDED_BY(mutex) = false;  // on what to call, or on a length
    // Each rank writes its own entry under mutex. All read them, without it, between two meetings.
    std::vector<std::string> tags;                  // by rank: what it calls
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
    CAIRN_TRY(core::CheckRoot("Broadcast", root, world_size()));
    std::vector<core::ByteView> sent(Count());
    if (rank_ == root) sent.assign(Count(), bytes);
    sent[static_cast<size_t>(root)] = {};
    return Exchange({"Broadcast", root}, std::move(sent),
                    rank_ == root ? None() : Only(root, bytes));
  }
  Result<void> Gather(core::ByteView mine, std::span<const core::ByteTarget> all,
                      int root) override {
    CAIRN_TRY(core::CheckRoot("Gather", root, world_size()));
    if (rank_ == root) CAIRN_TRY(CheckRanges("Gather", all, mine.size()));
    std::vector<core::ByteView> sent(Count());
    sent[static_cast<size_t>(root)] = mine;
    return Exchange({"Gather", root}, std::move(sent), rank_ == root ? Copy(all) : None());
  }
  Result<void> AllGather(core::ByteView mine, std::span<const core::ByteTarget> all) override {
    CAIRN_TRY(CheckRanges("AllGather", all, mine.size()));
    return Exchange({"AllGather", -1}, std::vector<core::ByteView>(Count(), mine), Copy(all));
  }
  Result<void> Scatter(std::span<const core::ByteView> all, core::ByteTarget mine,
                       int root) override {
    CAIRN_TRY(core::CheckRoot("Scatter", root, world_size()));
    if (rank_ == root) CAIRN_TRY(CheckRanges("Scatter", all, mine.size()));
    std::vector<core::ByteView> sent(Count());
    if (rank_ == root) sent.assign(all.begin(), all.end());
    return Exchange({"Scatter", root}, std::move(sent), Only(root, mine));
  }
  Result<void> AllToAll(std::span<const core::ByteView> sent,
                        std::span<const core::ByteTarget> received) override {
    CAIRN_TRY(core::CheckAllToAll(sent, received, rank_, world_size()));
    return Exchange({"AllToAll", -1}, {sent.begin(), sent.end()}, Copy(received));
  }

  Result<std::unique_ptr<core::Communicator>> Split(uint32_t color, uint32_t key) override {
    std::vector<std::pair<uint32_t, uint32_t>> choices(Count());  // color and key of each rank
    const std::pair<uint32_t, uint32_t> own(color, key);
    std::vector<core::ByteTarget> targets;
    for (auto& choice : choices) targets.push_back(std::as_writable_bytes(std::span(&choice, 1)));
    CAIRN_TRY(AllGather(std::as_bytes(std::span(&own, 1)), targets));
    int members = 0;
    int place = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (choices[i].first != color) continue;
      ++members;
      const bool before =
          choices[i].second < key || (choices[i].second == key && static_cast<int>(i) < rank_);
      if (before) ++place;
    }
    const MutexLock lock(shared_->mutex);
    auto& part = shared_->parts[{splits_++, color}];
    if (part == nullptr) part = std::make_shared<Shared>(members, shared_->timeout);
    return std::make_unique<ThreadCommunicator>(part, place);
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
  template <typename Ranges>
  Result<void> CheckRanges(const char* operation, const Ranges& all, uint64_t own_bytes) const {
    return core::CheckRanges(operation, all, rank_, world_size(), own_bytes);
  }
  size_t Count() const { return static_cast<size_t>(shared_->world_size); }
  std::vector<core::ByteTarget> None() const { return std::vector<core::ByteTarget>(Count()); }
  std::vector<core::ByteTarget> Only(int rank, core::ByteTarget target) const {
    auto targets = None();
    targets[static_cast<size_t>(rank)] = target;
    return targets;
  }
  static std::vector<core::ByteTarget> Copy(std::span<const core::ByteTarget> targets) {
    return {targets.begin(), targets.end()};
  }

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

  // Identifies a call: all ranks inside one have to agree on it.
  struct Call {
    const char* operation;
    int root;  // -1 without one
    friend bool operator==(const Call&, const Call&) = default;
  };

  Result<void> Exchange(const Call& call, std::vector<core::ByteView> sent,
                        const std::vector<core::ByteTarget>& received) {
    {
      const MutexLock lock(shared_->mutex);
      shared_->sent[static_cast<size_t>(rank_)] = std::move(sent);
      shared_->tags[static_cast<size_t>(rank_)] =
          std::string(call.operation) + std::to_string(call.root);
    }
    CAIRN_TRY(Meet(call.operation));
    bool agreed = true;
    for (size_t from = 0; from < Count(); ++from) {
      agreed &= shared_->tags[from] == shared_->tags[static_cast<size_t>(rank_)] &&
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
    CAIRN_TRY(Meet(call.operation));
    const MutexLock lock(shared_->mutex);
    if (!shared_->disagreed) return {};
    shared_->broken = true;
    return Fail(ErrorCode::kUnavailable,
                std::string(call.operation) + ": ranks called different things");
  }

  const std::shared_ptr<Shared> shared_;  // owned by all ranks
  const int rank_;
  uint64_t splits_ = 0;
  bool is_interrupted_ CAIRN_GUARDED_BY(shared_->mutex) = false;
};

/// Runs `body` once per rank, each on its own thread, and waits for all.
inline void RunRanks(int world_size, const std::function<void(core::Communicator&)>& body,
                     std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
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
