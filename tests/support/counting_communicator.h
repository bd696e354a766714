#pragma once
/// A communicator that counts calls of another, for tests such as "this save calls no collective".

#include <cstdint>
#include <memory>
#include <span>

#include "core/ranks/communicator.h"

namespace cairn::testing {

/// Collectives so far, including splits, except for those whose arguments were rejected.
struct CollectiveCounts {
  uint64_t call_count = 0;
};

/// Forwards every call to `communicator`. Requires that `communicator` and `counts` outlive it.
class CountingCommunicator final : public core::Communicator {
 public:
  CountingCommunicator(core::Communicator& communicator, CollectiveCounts& counts)
      : communicator_(communicator), counts_(counts) {}

  int rank() const override { return communicator_.rank(); }
  int world_size() const override { return communicator_.world_size(); }
  std::chrono::milliseconds timeout() const override { return communicator_.timeout(); }

  Result<void> Barrier() override {
    ++counts_.call_count;
    return communicator_.Barrier();
  }
  Result<void> Broadcast(core::ByteTarget bytes, int root) override {
    ++counts_.call_count;
    return communicator_.Broadcast(bytes, root);
  }
  Result<void> Exchange(Operation operation, std::span<const core::ByteView> sent,
                        std::span<const core::ByteTarget> received) override {
    ++counts_.call_count;
    return communicator_.Exchange(operation, sent, received);
  }
  Result<std::unique_ptr<core::Communicator>> Split(uint32_t color, uint32_t key) override {
    ++counts_.call_count;
    return communicator_.Split(color, key);
  }
  void Interrupt() override { communicator_.Interrupt(); }
  Result<void> CheckPeers() override { return communicator_.CheckPeers(); }

 private:
  core::Communicator& communicator_;
  CollectiveCounts& counts_;
};

}  // namespace cairn::testing
