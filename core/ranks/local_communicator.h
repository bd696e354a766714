#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A world of one rank: the communicator of a process that saves alone.

#include <chrono>
#include <memory>

#include "core/ranks/communicator.h"

namespace cairn::core {

/// Never waits and never breaks, so that `Interrupt` has no effect. Copies between ranges.
class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator() = default;

  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::chrono::milliseconds timeout() const override { return std::chrono::milliseconds::max(); }

  Result<void> Barrier() override { return {}; }
  Result<void> Broadcast(ByteTarget bytes, int root) override;
  Result<void> Gather(ByteView mine, std::span<const ByteTarget> all, int root) override;
  Result<void> AllGather(ByteView mine, std::span<const ByteTarget> all) override;
  Result<void> Scatter(std::span<const ByteView> all, ByteTarget mine, int root) override;
  Result<void> AllToAll(std::span<const ByteView> sent,
                        std::span<const ByteTarget> received) override;
  Result<std::unique_ptr<Communicator>> Split(uint32_t color, uint32_t key) override;
  void Interrupt() override {}
  Result<void> CheckPeers() override { return {}; }
};

}  // namespace cairn::core
