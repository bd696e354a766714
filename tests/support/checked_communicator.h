#pragma once
/// Checks what core/ranks/communicator.h requires of callers.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/ranks/communicator.h"

namespace cairn::testing {

/// Forwards calls to another communicator, and fails the test if ranges of one call overlap, which
/// communicators need not detect. Counts bytes from other ranks. Threads: as for the communicator.
class CheckedCommunicator : public core::Communicator {
 public:
  /// Requires that `below` outlives it.
  explicit CheckedCommunicator(core::Communicator& below) : below_(below) {}

  int rank() const override { return below_.rank(); }
  int world_size() const override { return below_.world_size(); }
  std::chrono::milliseconds timeout() const override { return below_.timeout(); }
  uint64_t received_bytes() const { return received_bytes_; }

  Result<void> Barrier() override { return below_.Barrier(); }
  Result<void> Broadcast(core::ByteTarget bytes, int root) override {
    if (root != rank()) received_bytes_ += bytes.size();
    return below_.Broadcast(bytes, root);
  }
  Result<void> Gather(core::ByteView mine, std::span<const core::ByteTarget> all,
                      int root) override {
    if (root == rank()) Count(all);
    Check({mine}, root == rank() ? all : std::span<const core::ByteTarget>());
    return below_.Gather(mine, all, root);
  }
  Result<void> AllGather(core::ByteView mine, std::span<const core::ByteTarget> all) override {
    Count(all);
    Check({mine}, all);
    return below_.AllGather(mine, all);
  }
  Result<void> Scatter(std::span<const core::ByteView> all, core::ByteTarget mine,
                       int root) override {
    if (root != rank()) received_bytes_ += mine.size();
    std::vector<core::ByteView> sent;
    if (root == rank()) sent.assign(all.begin(), all.end());
    Check(std::move(sent), {&mine, 1});
    return below_.Scatter(all, mine, root);
  }
  Result<void> AllToAll(std::span<const core::ByteView> sent,
                        std::span<const core::ByteTarget> received) override {
    Count(received);
    Check({sent.begin(), sent.end()}, received);
    return below_.AllToAll(sent, received);
  }
  Result<std::unique_ptr<core::Communicator>> Split(uint32_t color, uint32_t key) override {
    return below_.Split(color, key);
  }
  void Interrupt() override { below_.Interrupt(); }
  Result<void> CheckPeers() override { return below_.CheckPeers(); }

 private:
  void Count(std::span<const core::ByteTarget> received) {
    for (size_t i = 0; i < received.size(); ++i) {
      if (static_cast<int>(i) != rank()) received_bytes_ += received[i].size();
    }
  }
  static void Check(std::vector<core::ByteView> ranges, std::span<const core::ByteTarget> written) {
    ranges.insert(ranges.end(), written.begin(), written.end());
    std::erase_if(ranges, [](core::ByteView range) { return range.empty(); });
    std::ranges::sort(ranges, {}, [](core::ByteView range) { return range.data(); });
    for (size_t i = 1; i < ranges.size(); ++i) {
      EXPECT_LE(ranges[i - 1].data() + ranges[i - 1].size(), ranges[i].data())
          << "ranges of one call overlap";
    }
  }

  core::Communicator& below_;
  uint64_t received_bytes_ = 0;
};

}  // namespace cairn::testing
