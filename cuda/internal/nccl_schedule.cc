#include "cuda/internal/nccl_schedule.h"

#include <algorithm>

#include "kv/base/error.h"

namespace cairn::cuda::internal {

ChunkLayout ChunkLayout::Of(int world_size, uint64_t buffer_bytes) {
  CAIRN_CHECK(world_size > 0 && buffer_bytes >= MinBufferBytes());
  const uint64_t others = std::max<uint64_t>(static_cast<uint64_t>(world_size) - 1, 1);
  const uint64_t slot_pairs = buffer_bytes / (2 * kHalves);  // bytes per pair of slots
  const uint64_t peers = std::clamp<uint64_t>(slot_pairs / kWantedSliceBytes, 1, others);
  return {.peers_per_round = static_cast<int>(peers),
          .slice_bytes = slot_pairs / peers / kAlignmentBytes * kAlignmentBytes};
}

ExchangeRounds::ExchangeRounds(const ChunkLayout& layout, int rank,
                               std::span<const uint64_t> sent_bytes,
                               std::span<const uint64_t> received_bytes)
    : layout_(layout),
      rank_(rank),
      world_size_(static_cast<int>(sent_bytes.size())),
      sent_bytes_(sent_bytes.begin(), sent_bytes.end()),
      received_bytes_(received_bytes.begin(), received_bytes.end()) {
  CAIRN_CHECK(sent_bytes.size() == received_bytes.size());
  CAIRN_CHECK(0 <= rank && rank < world_size_);
}

void ExchangeRounds::AddSlice(std::vector<PeerSlice>& slices, const std::vector<uint64_t>& lengths,
                              int peer, uint64_t slot) const {
  const uint64_t length = lengths[static_cast<size_t>(peer)];
  const uint64_t offset = slice_ * layout_.slice_bytes;
  if (offset >= length) return;
  slices.push_back({.peer = peer,
                    .offset_bytes = offset,
                    .length_bytes = std::min(length - offset, layout_.slice_bytes),
                    .slot = slot});
}

bool ExchangeRounds::Next(Round& round) {
  for (;;) {
    round.sends.clear();
    round.receives.clear();
    if (window_begin_ >= world_size_) return false;
    for (int i = 0; i < layout_.peers_per_round && window_begin_ + i < world_size_; ++i) {
      const auto slot = static_cast<uint64_t>(i);
      AddSlice(round.sends, sent_bytes_, PeerAfter(window_begin_ + i), slot);
      AddSlice(round.receives, received_bytes_, PeerBefore(window_begin_ + i),
               static_cast<uint64_t>(layout_.peers_per_round) + slot);
    }
    if (!round.sends.empty() || !round.receives.empty()) {
      ++slice_;
      return true;
    }
    window_begin_ += layout_.peers_per_round;
    slice_ = 0;
  }
}

}  // namespace cairn::cuda::internal
