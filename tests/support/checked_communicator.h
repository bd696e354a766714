#pragma once
/// Checks what core/ranks/communicator.h requires of callers, and counts what they call.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/ranks/communicator.h"

namespace cairn::testing {

/// Forwards calls to another communicator, and fails the test if a range that is written overlaps
/// another one, which communicators need not detect. Counts calls, except for those whose arguments
/// were rejected, and bytes. Threads: as for the communicator.
class CheckedCommunicator : public core::Communicator {
 public:
  /// Requires that `below` outlives it.
  explicit CheckedCommunicator(core::Communicator& below) : below_(below) {}

  int rank() const override { return below_.rank(); }
  int world_size() const override { return below_.world_size(); }
  std::chrono::milliseconds timeout() const override { return below_.timeout(); }
  uint64_t call_count() const { return call_count_; }
  /// From other ranks.
  uint64_t received_bytes() const { return received_bytes_; }
  /// The most bytes of memory that one call had.
  uint64_t largest_call_bytes() const { return largest_call_bytes_; }
  /// The ranges of the last Exchange that are not empty.
  const std::vector<core::ByteView>& last_ranges() const { return last_ranges_; }

  Result<void> Barrier() override {
    ++call_count_;
    return below_.Barrier();
  }
  Result<void> Broadcast(core::ByteTarget bytes, int root) override {
    ++call_count_;
    if (root != rank()) received_bytes_ += bytes.size();
    largest_call_bytes_ = std::max<uint64_t>(largest_call_bytes_, bytes.size());
    return below_.Broadcast(bytes, root);
  }
  Result<void> Exchange(Operation operation, std::span<const core::ByteView> sent,
                        std::span<const core::ByteTarget> received) override {
    ++call_count_;
    for (size_t i = 0; i < received.size(); ++i) {
      if (static_cast<int>(i) != rank()) received_bytes_ += received[i].size();
    }
    std::vector<std::pair<core::ByteView, bool>> ranges;  // whether it is written
    for (const core::ByteView range : sent) ranges.emplace_back(range, false);
    for (const core::ByteTarget range : received) ranges.emplace_back(range, true);
    std::erase_if(ranges, [](const auto& range) { return range.first.empty(); });
    for (size_t i = 0; i < ranges.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const auto& [a, a_is_written] = ranges[i];
        const auto& [b, b_is_written] = ranges[j];
        if (!a_is_written && !b_is_written) continue;
        EXPECT_TRUE(a.data() + a.size() <= b.data() || b.data() + b.size() <= a.data())
            << "a range that is written overlaps another one";
      }
    }
    last_ranges_.clear();
    std::set<const std::byte*> begins;  // a range may be sent to several ranks
    uint64_t call_bytes = 0;
    for (const auto& [range, is_written] : ranges) {
      last_ranges_.push_back(range);
      if (begins.insert(range.data()).second) call_bytes += range.size();
    }
    largest_call_bytes_ = std::max(largest_call_bytes_, call_bytes);
    return below_.Exchange(operation, sent, received);
  }
  Result<std::unique_ptr<core::Communicator>> Split(uint32_t color, uint32_t key) override {
    ++call_count_;
    return below_.Split(color, key);
  }
  void Interrupt() override { below_.Interrupt(); }
  Result<void> CheckPeers() override { return below_.CheckPeers(); }

 private:
  core::Communicator& below_;
  uint64_t call_count_ = 0;
  uint64_t received_bytes_ = 0;
  uint64_t largest_call_bytes_ = 0;
  std::vector<core::ByteView> last_ranges_;
};

}  // namespace cairn::testing
