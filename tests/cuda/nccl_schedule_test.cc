// The rounds of all ranks of an exchange, without CUDA and NCCL.

#include "cuda/internal/nccl_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "tests/support/seeded_random.h"

namespace cairn::cuda::internal {
namespace {

using testing::SeededRandom;

/// Lengths by sender and receiver.
using Lengths = std::vector<std::vector<uint64_t>>;

std::vector<Round> RoundsOf(const ChunkLayout& layout, const Lengths& lengths, size_t rank) {
  std::vector<uint64_t> received;
  for (const auto& row : lengths) received.push_back(row[rank]);
  ExchangeRounds rounds(layout, static_cast<int>(rank), lengths[rank], received);
  std::vector<Round> all;
  for (Round round; rounds.Next(round);) all.push_back(round);
  return all;
}

std::vector<std::vector<Round>> RoundsOfAll(const ChunkLayout& layout, const Lengths& lengths) {
  std::vector<std::vector<Round>> all;
  for (size_t rank = 0; rank < lengths.size(); ++rank) {
    all.push_back(RoundsOf(layout, lengths, rank));
  }
  return all;
}

/// A world with lengths around multiples of the slice length, small enough for thousands of worlds
/// per test.
struct RandomExchange {
  explicit RandomExchange(SeededRandom& random)
      : world_size(random.Between(1, 9)),
        buffer_bytes(random.Chance(0.5) ? random.Between(ChunkLayout::MinBufferBytes(), 40'000)
                                        : random.Between(1, 40) << 20),
        layout(ChunkLayout::Of(static_cast<int>(world_size), buffer_bytes)),
        lengths(world_size, std::vector<uint64_t>(world_size)) {
    for (auto& row : lengths) {
      for (uint64_t& length : row) {
        if (random.Chance(0.3)) continue;
        length = random.Chance(0.3) ? layout.slice_bytes * random.Between(1, 4)
                                    : random.Between(1, 5 * layout.slice_bytes);
      }
    }
  }

  uint64_t world_size;
  uint64_t buffer_bytes;
  ChunkLayout layout;
  Lengths lengths;
};

constexpr int kExchanges = 2000;

TEST(ChunkScheduleTest, EveryByteIsSentOnceInOrderThroughSlotsThatFitIntoTheBuffer) {
  SeededRandom random;
  for (int i = 0; i < kExchanges; ++i) {
    const RandomExchange exchange(random);
    EXPECT_LE(ChunkLayout::kHalves * exchange.layout.half_bytes(), exchange.buffer_bytes);
    for (size_t rank = 0; rank < exchange.world_size; ++rank) {
      std::vector<uint64_t> sent(exchange.world_size), received(exchange.world_size);
      std::set<uint64_t> slots;
      const auto take = [&](const std::vector<PeerSlice>& slices, std::vector<uint64_t>& done) {
        for (const PeerSlice& slice : slices) {
          EXPECT_LT(slice.slot, exchange.layout.slots_per_half());
          EXPECT_LE(slice.length_bytes, exchange.layout.slice_bytes);
          EXPECT_TRUE(slots.insert(slice.slot).second) << "a slot is used twice in a round";
          uint64_t& end = done[static_cast<size_t>(slice.peer)];
          ASSERT_EQ(slice.offset_bytes, end);
          ASSERT_GT(slice.length_bytes, 0u);
          end += slice.length_bytes;
        }
      };
      for (const Round& round : RoundsOf(exchange.layout, exchange.lengths, rank)) {
        slots.clear();
        take(round.sends, sent);
        take(round.receives, received);
        EXPECT_FALSE(slots.empty()) << "an empty round";
      }
      for (size_t peer = 0; peer < exchange.world_size; ++peer) {
        EXPECT_EQ(sent[peer], peer == rank ? 0 : exchange.lengths[rank][peer]);
        EXPECT_EQ(received[peer], peer == rank ? 0 : exchange.lengths[peer][rank]);
      }
    }
  }
}

/// Executes the rounds as NCCL would, each as one group: a round of a rank ends when the peer of
/// each of its slices has reached the round with the same slice. Returns false if ranks wait in a
/// cycle.
bool ExecuteToTheEnd(const std::vector<std::vector<Round>>& all) {
  std::vector<size_t> at(all.size());
  // Returns whether all slices of a round have met their peers, so that the round can end.
  const auto meets = [&](size_t rank, const Round& round) {
    const auto has = [](const std::vector<PeerSlice>& slices, int peer, const PeerSlice& slice) {
      return std::ranges::any_of(slices, [&](const PeerSlice& other) {
        return other.peer == peer && other.offset_bytes == slice.offset_bytes &&
               other.length_bytes == slice.length_bytes;
      });
    };
    // A peer that is past the round has transferred it already; otherwise this rank waits.
    const auto met = [&](const PeerSlice& slice, bool sends) {
      const auto& theirs = all[static_cast<size_t>(slice.peer)];
      for (size_t i = 0; i < theirs.size(); ++i) {
        const Round& other = theirs[i];
        if (has(sends ? other.receives : other.sends, static_cast<int>(rank), slice)) {
          return i <= at[static_cast<size_t>(slice.peer)];
        }
      }
      return false;
    };
    return std::ranges::all_of(round.sends, [&](const PeerSlice& p) { return met(p, true); }) &&
           std::ranges::all_of(round.receives, [&](const PeerSlice& p) { return met(p, false); });
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (at[rank] == all[rank].size() || !meets(rank, all[rank][at[rank]])) continue;
      ++at[rank];
      moved = true;
    }
  }
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (at[rank] != all[rank].size()) return false;
  }
  return true;
}

TEST(ChunkScheduleTest, SendersAndReceiversAgreeOnSlicesAndNeverWaitInACycle) {
  SeededRandom random;
  for (int i = 0; i < kExchanges / 4; ++i) {
    const RandomExchange exchange(random);
    EXPECT_TRUE(ExecuteToTheEnd(RoundsOfAll(exchange.layout, exchange.lengths)));
  }
}

TEST(ChunkScheduleTest, ExecutionDetectsRanksThatWaitInACycle) {
  // Each receives from the other before it sends.
  const PeerSlice slice{.peer = 1, .offset_bytes = 0, .length_bytes = 1, .slot = 0};
  PeerSlice back = slice;
  back.peer = 0;
  const std::vector<Round> first = {{.sends = {}, .receives = {slice}},
                                    {.sends = {slice}, .receives = {}}};
  const std::vector<Round> second = {{.sends = {}, .receives = {back}},
                                     {.sends = {back}, .receives = {}}};
  EXPECT_FALSE(ExecuteToTheEnd({first, second}));
}

}  // namespace
}  // namespace cairn::cuda::internal
