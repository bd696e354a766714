#pragma once
/// A communicator that counts calls of another, for tests such as "this save calls no collective".

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "core/ranks/communicator.h"

namespace cairn::testing {

/// Calls so far, including rejected ones.
struct CollectiveCounts {
  uint64_t call_count = 0;  // all collectives, including splits
  uint64_t split_count = 0;
  uint64_t given_bytes = 0;  // bytes in ranges that this rank sends
};

/// Forwards every call to `communicator`. Communicators split from it add to the same counts.
/// Requires that `communicator` and `counts` outlive it and them.
class CountingCommunicator final : public core::Communicator {
 public:
  CountingCommunicator(core::Communicator& communicator, CollectiveCounts& counts)
      : communicator_(communicator), counts_(counts) {}

  int rank() const override { return communicator_.rank(); }
  int world_size() const override { return communicator_.world_size(); }
  std::chrono::milliseconds timeout() const override { return communicator_.timeout(); }

  Result<void> Barrier() override {
    Count(0);
    return communicator_.Barrier();
  }
  Result<void> Broadcast(core::ByteTarget bytes, int root) override {
    Count(root == rank() ? bytes.size() : 0);
    return communicator_.Broadcast(bytes, root);
  }
  Result<void> Gather(core::ByteView mine, std::span<const core::ByteTarget> all,
                      int root) override {
    Count(mine.size());
    return communicator_.Gather(mine, all, root);
  }
  Result<void> AllGather(core::ByteView mine, std::span<const core::ByteTarget> all) override {
    Count(mine.size());
    return communicator_.AllGather(mine, all);
  }
  Result<void> Scatter(std::span<const core::ByteView> all, core::ByteTarget mine,
                       int root) override {
    Count(root == rank() ? Total(all) : 0);
    return communicator_.Scatter(all, mine, root);
  }
  Result<void> AllToAll(std::span<const core::ByteView> sent,
                        std::span<const core::ByteTarget> received) override {
    Count(Total(sent));
    return communicator_.AllToAll(sent, received);
  }
  Result<std::unique_ptr<core::Communicator>> Split(uint32_t color, uint32_t key) override {
    Count(0);
    ++counts_.split_count;
    CAIRN_TRY_ASSIGN(auto part, communicator_.Split(color, key));
    auto counting = std::make_unique<CountingCommunicator>(*part, counts_);
    counting->owned_ = std::move(part);
    return counting;
  }
  void Interrupt() override { communicator_.Interrupt(); }
  Result<void> CheckPeers() override { return communicator_.CheckPeers(); }

 private:
  static uint64_t Total(std::span<const core::ByteView> all) {
    uint64_t total_bytes = 0;
    for (const core::ByteView bytes : all) total_bytes += bytes.size();
    return total_bytes;
  }
  void Count(uint64_t given_bytes) {
    ++counts_.call_count;
    counts_.given_bytes += given_bytes;
  }

  core::Communicator& communicator_;
  CollectiveCounts& counts_;
  std::unique_ptr<core::Communicator> owned_;  // `communicator_` if it is the result of a split
};

}  // namespace cairn::testing
