#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A world of one rank: the communicator of a process that saves alone.

#include <algorithm>
#include <chrono>
#include <memory>

#include "core/ranks/communicator.h"

namespace cairn::core {

/// Never waits and never breaks, so that `Interrupt` has no effect. Copies between ranges.
class LocalCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::chrono::milliseconds timeout() const override { return std::chrono::milliseconds::max(); }

  Result<void> Barrier() override { return {}; }
  Result<void> Broadcast(ByteTarget, int root) override {
    return CheckRoot(Operation::kBroadcast, root);
  }
  Result<void> Exchange(Operation, std::span<const ByteView> sent,
                        std::span<const ByteTarget> received) override {
    std::ranges::copy(sent[0], received[0].begin());
    return {};
  }
  Result<std::unique_ptr<Communicator>> Split(uint32_t, uint32_t) override {
    return std::make_unique<LocalCommunicator>();
  }
  void Interrupt() override {}
  Result<void> CheckPeers() override { return {}; }
};

}  // namespace cairn::core
