// The contract of core/ranks/communicator.h, except for deadlines.

#include "tests/contract/communicator_contract.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "core/ranks/gather_v.h"
#include "core/tensor/mesh.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::testing {

std::vector<WorldParam> Worlds(const MakeWorld& make, const std::vector<int>& world_sizes) {
  std::vector<WorldParam> worlds;
  for (const int size : world_sizes) worlds.push_back({.make = make, .world_size = size});
  return worlds;
}

std::string WorldName(const ::testing::TestParamInfo<WorldParam>& info) {
  return "Of" + std::to_string(info.param.world_size);
}

void RunRanks(World& world, const std::function<void(core::Communicator&)>& body) {
  std::vector<std::jthread> ranks;
  for (const auto& communicator : world) {
    ranks.emplace_back([&body, &communicator] { body(*communicator); });
  }
}

World& CommunicatorTest::Make(std::chrono::milliseconds timeout) {
  world_ = GetParam().make(GetParam().world_size, timeout);
  EXPECT_EQ(world_.size(), static_cast<size_t>(GetParam().world_size));
  return world_;
}

void CommunicatorTest::TearDown() {
  std::vector<std::jthread> closing;
  for (auto& communicator : world_) {
    closing.emplace_back([&communicator] { communicator.reset(); });
  }
}

namespace {

using core::ByteTarget;
using core::ByteVector;
using core::ByteView;
using core::Communicator;
using std::chrono::milliseconds;

constexpr milliseconds kAmpleTimeout = std::chrono::seconds(300);

/// One range per rank; some are empty, and some exceed the size of one message.
std::vector<ByteVector> RandomRanges(SeededRandom& random, size_t world_size) {
  std::vector<ByteVector> ranges(world_size);
  for (ByteVector& range : ranges) {
    range = random.Bytes(random.Chance(0.3) ? 0 : random.Between(1, 200'000));
  }
  return ranges;
}
/// Zeros with the lengths of `ranges`.
std::vector<ByteVector> RoomFor(const std::vector<ByteVector>& ranges) {
  std::vector<ByteVector> room;
  for (const ByteVector& range : ranges) room.emplace_back(range.size());
  return room;
}

std::vector<ByteView> ViewsOf(const std::vector<ByteVector>& all) {
  return {all.begin(), all.end()};
}
std::vector<ByteTarget> TargetsOf(std::vector<ByteVector>& all) { return {all.begin(), all.end()}; }

TEST_P(CommunicatorContractTest, RanksAreNumberedFromZero) {
  World& world = Make(kAmpleTimeout);
  for (size_t i = 0; i < world.size(); ++i) {
    EXPECT_EQ(world[i]->rank(), static_cast<int>(i));
    EXPECT_EQ(world[i]->world_size(), GetParam().world_size);
    EXPECT_GE(world[i]->timeout(), kAmpleTimeout);
  }
}

TEST_P(CommunicatorContractTest, NoRankLeavesABarrierBeforeTheLastArrives) {
  World& world = Make(kAmpleTimeout);
  std::atomic<int> arrived = 0;
  for (int round = 1; round <= 20; ++round) {
    RunRanks(world, [&](Communicator& communicator) {
      ++arrived;
      CAIRN_ASSERT_OK(communicator.Barrier());
      EXPECT_EQ(arrived, round * GetParam().world_size);
    });
  }
}

TEST_P(CommunicatorContractTest, BroadcastCopiesTheBytesOfEachRootInTurnToEveryRank) {
  World& world = Make(kAmpleTimeout);
  SeededRandom random;
  for (int root = 0; root < GetParam().world_size; ++root) {
    for (const uint64_t length : {uint64_t{0}, uint64_t{1}, random.Between(2, 300'000)}) {
      const ByteVector expected = random.Bytes(length);
      RunRanks(world, [&](Communicator& communicator) {
        ByteVector bytes = communicator.rank() == root ? expected : ByteVector(length);
        CAIRN_ASSERT_OK(communicator.Broadcast(bytes, root));
        EXPECT_TRUE(bytes == expected) << "rank " << communicator.rank() << ", root " << root;
      });
    }
  }
}

TEST_P(CommunicatorContractTest, GatherCopiesUnequalRangesToEachRootInTurn) {
  World& world = Make(kAmpleTimeout);
  SeededRandom random;
  for (int root = 0; root < GetParam().world_size; ++root) {
    const std::vector<ByteVector> expected = RandomRanges(random, world.size());
    std::vector<ByteVector> found = RoomFor(expected);
    RunRanks(world, [&](Communicator& communicator) {
      const ByteVector& mine = expected[static_cast<size_t>(communicator.rank())];
      const bool is_root = communicator.rank() == root;
      CAIRN_ASSERT_OK(
          communicator.Gather(mine, is_root ? TargetsOf(found) : std::vector<ByteTarget>(), root));
    });
    EXPECT_TRUE(found == expected) << "root " << root;
  }
}

TEST_P(CommunicatorContractTest, ScatterCopiesUnequalRangesFromEachRootInTurn) {
  World& world = Make(kAmpleTimeout);
  SeededRandom random;
  for (int root = 0; root < GetParam().world_size; ++root) {
    const std::vector<ByteVector> sent = RandomRanges(random, world.size());
    RunRanks(world, [&](Communicator& communicator) {
      const ByteVector& expected = sent[static_cast<size_t>(communicator.rank())];
      ByteVector mine(expected.size());
      const bool is_root = communicator.rank() == root;
      CAIRN_ASSERT_OK(
          communicator.Scatter(is_root ? ViewsOf(sent) : std::vector<ByteView>(), mine, root));
      EXPECT_TRUE(mine == expected) << "rank " << communicator.rank() << ", root " << root;
    });
  }
}

TEST_P(CommunicatorContractTest, AllGatherCopiesUnequalRangesToEveryRank) {
  World& world = Make(kAmpleTimeout);
  SeededRandom random;
  for (int round = 0; round < 5; ++round) {
    const std::vector<ByteVector> expected = RandomRanges(random, world.size());
    RunRanks(world, [&](Communicator& communicator) {
      std::vector<ByteVector> found = RoomFor(expected);
      CAIRN_ASSERT_OK(communicator.AllGather(expected[static_cast<size_t>(communicator.rank())],
                                             TargetsOf(found)));
      EXPECT_TRUE(found == expected) << "rank " << communicator.rank();
    });
  }
}

TEST_P(CommunicatorContractTest, AllToAllExchangesUnequalRanges) {
  World& world = Make(kAmpleTimeout);
  SeededRandom random;
  for (int round = 0; round < 5; ++round) {
    std::vector<std::vector<ByteVector>> sent(world.size());
    for (auto& of_rank : sent) of_rank = RandomRanges(random, world.size());
    RunRanks(world, [&](Communicator& communicator) {
      const auto rank = static_cast<size_t>(communicator.rank());
      std::vector<ByteVector> expected;
      for (const auto& of_peer : sent) expected.push_back(of_peer[rank]);
      std::vector<ByteVector> found = RoomFor(expected);
      CAIRN_ASSERT_OK(communicator.AllToAll(ViewsOf(sent[rank]), TargetsOf(found)));
      EXPECT_TRUE(found == expected) << "rank " << communicator.rank();
    });
  }
}

TEST_P(CommunicatorContractTest, LongRangesArriveComplete) {
  World& world = Make(kAmpleTimeout);
  // Longer than any size at which a communicator may split a range, and not a multiple of it.
  const uint64_t length = (uint64_t{40} << 20) + 12'345;
  const int root = GetParam().world_size - 1;
  SeededRandom random;
  const ByteVector expected = random.Bytes(length);
  std::vector<ByteVector> found(world.size());
  RunRanks(world, [&](Communicator& communicator) {
    ByteVector& bytes = found[static_cast<size_t>(communicator.rank())];
    bytes = communicator.rank() == root ? expected : ByteVector(length);
    CAIRN_ASSERT_OK(communicator.Broadcast(bytes, root));
  });
  for (const ByteVector& bytes : found) EXPECT_TRUE(bytes == expected);

  // From every rank to the last, whose own range is copied locally.
  std::vector<ByteVector> gathered(world.size(), ByteVector(length));
  RunRanks(world, [&](Communicator& communicator) {
    const ByteVector& mine = found[static_cast<size_t>(communicator.rank())];
    CAIRN_ASSERT_OK(communicator.Gather(mine, TargetsOf(gathered), root));
  });
  for (const ByteVector& bytes : gathered) EXPECT_TRUE(bytes == expected);
}

TEST_P(CommunicatorContractTest, InvalidArgumentsSendNothingAndBreakNothing) {
  World& world = Make(kAmpleTimeout);
  const int size = GetParam().world_size;
  RunRanks(world, [&](Communicator& communicator) {
    ByteVector some(8);
    std::vector<ByteVector> all(static_cast<size_t>(size), ByteVector(8));
    std::vector<ByteVector> too_many(static_cast<size_t>(size) + 1, ByteVector(8));
    std::vector<ByteVector> own_is_short = all;
    own_is_short[static_cast<size_t>(communicator.rank())].resize(7);
    const auto invalid = [](const char* words) {
      return IsError(ErrorCode::kInvalidArgument, words);
    };
    for (const int root : {-1, size}) {
      EXPECT_THAT(communicator.Broadcast(some, root), invalid("root"));
      EXPECT_THAT(communicator.Gather(some, TargetsOf(all), root), invalid("root"));
      EXPECT_THAT(communicator.Scatter(ViewsOf(all), some, root), invalid("root"));
    }
    EXPECT_THAT(communicator.Gather(some, TargetsOf(too_many), communicator.rank()),
                invalid("ranges"));
    EXPECT_THAT(communicator.Gather(some, TargetsOf(own_is_short), communicator.rank()),
                invalid("7 bytes"));
    EXPECT_THAT(communicator.Scatter(ViewsOf(too_many), some, communicator.rank()),
                invalid("ranges"));
    EXPECT_THAT(communicator.Scatter(ViewsOf(own_is_short), some, communicator.rank()),
                invalid("7"));
    EXPECT_THAT(communicator.AllGather(some, TargetsOf(too_many)), invalid("ranges"));
    EXPECT_THAT(communicator.AllGather(some, TargetsOf(own_is_short)), invalid("7"));
    EXPECT_THAT(communicator.AllToAll(ViewsOf(too_many), TargetsOf(all)), invalid("ranges"));
    EXPECT_THAT(communicator.AllToAll(ViewsOf(all), TargetsOf(too_many)), invalid("ranges"));
    EXPECT_THAT(communicator.AllToAll(ViewsOf(all), {}), invalid("AllToAll"));
    EXPECT_THAT(communicator.AllToAll(ViewsOf(own_is_short), TargetsOf(all)), invalid("7"));

    CAIRN_EXPECT_OK(communicator.Barrier());
  });
}

TEST_P(CommunicatorContractTest, SplitNumbersEachGroupByKeyThenRank) {
  World& world = Make(kAmpleTimeout);
  const int size = GetParam().world_size;
  // Color 0 contains every third rank, in reverse. The others have equal keys and keep their order.
  const auto color_of = [](int rank) { return rank % 3 == 0 ? 0u : 7u; };
  RunRanks(world, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    const uint32_t color = color_of(rank);
    CAIRN_ASSERT_OK_AND_ASSIGN(
        const auto part,
        communicator.Split(color, color == 0 ? static_cast<uint32_t>(size - rank) : 5));
    std::vector<int> expected;
    for (int i = 0; i < size; ++i) {
      if (color_of(i) == color) expected.push_back(i);
    }
    if (color == 0) std::ranges::reverse(expected);
    ASSERT_EQ(part->world_size(), static_cast<int>(expected.size()));
    EXPECT_EQ(expected[static_cast<size_t>(part->rank())], rank);

    std::vector<int> found(expected.size(), -1);
    std::vector<ByteTarget> targets;
    for (int& value : found) targets.push_back(std::as_writable_bytes(std::span(&value, 1)));
    CAIRN_ASSERT_OK(part->AllGather(std::as_bytes(std::span(&rank, 1)), targets));
    EXPECT_EQ(found, expected);
    // Both remain usable.
    CAIRN_EXPECT_OK(communicator.Barrier());
    CAIRN_EXPECT_OK(part->Barrier());
  });
}

TEST_P(CommunicatorContractTest, PartsOfASplitMayBeUsedAndSplitAfterTheirParentIsGone) {
  World& world = Make(kAmpleTimeout);
  World parts(world.size());
  RunRanks(world, [&](Communicator& communicator) {
    const auto rank = static_cast<size_t>(communicator.rank());
    CAIRN_ASSERT_OK_AND_ASSIGN(parts[rank], communicator.Split(1, 0));
  });
  world.clear();
  RunRanks(parts, [&](Communicator& part) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto alone, part.Split(static_cast<uint32_t>(part.rank()), 0));
    EXPECT_EQ(alone->world_size(), 1);
    CAIRN_EXPECT_OK(alone->Barrier());
    CAIRN_EXPECT_OK(part.Barrier());
  });
}

TEST_P(CommunicatorContractTest, SplitAlongAMeshReturnsTheRanksThatDifferInItsDimensionsOnly) {
  World& world = Make(kAmpleTimeout);
  const auto size = static_cast<uint32_t>(GetParam().world_size);
  const uint32_t columns = size % 2 == 0 ? 2 : 1;
  // The mesh contains the ranks in descending order.
  std::vector<uint32_t> ranks(size);
  std::iota(ranks.rbegin(), ranks.rend(), 0u);
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto mesh,
      core::DeviceMesh::Make(
          {{.name = "dp", .size = size / columns}, {.name = "tp", .size = columns}}, ranks));
  RunRanks(world, [&](Communicator& communicator) {
    for (const std::vector<size_t>& along : {std::vector<size_t>{0}, std::vector<size_t>{1},
                                             std::vector<size_t>{0, 1}, std::vector<size_t>{}}) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto part, SplitAlong(communicator, mesh, along));
      const auto rank = static_cast<uint32_t>(communicator.rank());
      const std::vector<uint32_t> expected = mesh.GroupOf(rank, along);
      ASSERT_EQ(part->world_size(), static_cast<int>(expected.size()));
      EXPECT_EQ(expected[static_cast<size_t>(part->rank())], rank);
    }
  });
}

TEST_P(CommunicatorContractTest, SplitAlongRejectsAMeshOfOtherRanks) {
  World& world = Make(kAmpleTimeout);
  const auto size = static_cast<uint32_t>(GetParam().world_size);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto larger, core::DeviceMesh::Make({{.size = size + 1}}));
  std::vector<uint32_t> shifted(size);
  std::iota(shifted.begin(), shifted.end(), 1u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto others, core::DeviceMesh::Make({{.size = size}}, shifted));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto right, core::DeviceMesh::Make({{.size = size}}));
  RunRanks(world, [&](Communicator& communicator) {
    const std::vector<size_t> first = {0}, second = {1};
    EXPECT_THAT(SplitAlong(communicator, larger, first),
                IsError(ErrorCode::kInvalidArgument, "mesh"));
    EXPECT_THAT(SplitAlong(communicator, others, first),
                IsError(ErrorCode::kInvalidArgument, "mesh"));
    EXPECT_THAT(SplitAlong(communicator, right, second),
                IsError(ErrorCode::kInvalidArgument, "numbered 1"));
    CAIRN_EXPECT_OK(communicator.Barrier());
  });
}

TEST_P(CommunicatorContractTest, RangesOfUnknownLengthsReachTheirReceivers) {
  World& world = Make(kAmpleTimeout);
  SeededRandom random;
  const std::vector<ByteVector> expected = RandomRanges(random, world.size());
  RunRanks(world, [&](Communicator& communicator) {
    const ByteVector& mine = expected[static_cast<size_t>(communicator.rank())];
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto all, core::AllGatherV(communicator, mine));
    EXPECT_TRUE(all == expected);
    for (int root = 0; root < communicator.world_size(); ++root) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const ByteVector broadcast,
                                 core::BroadcastV(communicator, mine, root));
      EXPECT_TRUE(broadcast == expected[static_cast<size_t>(root)]);
    }
  });
}

TEST_P(CommunicatorContractTest, LengthsAboveTheLimitFailOnAllRanksAndBreakNothing) {
  World& world = Make(kAmpleTimeout);
  const int last = GetParam().world_size - 1;
  RunRanks(world, [&](Communicator& communicator) {
    const ByteVector mine(communicator.rank() == last ? 101 : 0);
    const auto too_long = IsError(ErrorCode::kInvalidArgument, "101 bytes");
    EXPECT_THAT(core::AllGatherV(communicator, mine, 100), too_long);
    EXPECT_THAT(core::BroadcastV(communicator, mine, last, 100), too_long);
    EXPECT_THAT(core::BroadcastV(communicator, mine, last + 1),
                IsError(ErrorCode::kInvalidArgument, "root"));
    CAIRN_EXPECT_OK(core::AllGatherV(communicator, mine, 101));
  });
}

}  // namespace
}  // namespace cairn::testing
