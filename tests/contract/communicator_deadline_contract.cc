// The contract of core/ranks/communicator.h for calls that cannot complete: deadlines, interrupts
// and ranks that disagree.

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "core/ranks/gather_v.h"
#include "tests/contract/communicator_contract.h"
#include "tests/support/result_matchers.h"

namespace cairn::testing {
namespace {

using core::ByteTarget;
using core::ByteVector;
using core::Communicator;
using std::chrono::milliseconds;

constexpr milliseconds kAmpleTimeout = std::chrono::hours(1);  // longer than a test may take
constexpr milliseconds kShortTimeout(250);

std::vector<ByteTarget> TargetsOf(std::vector<ByteVector>& all) { return {all.begin(), all.end()}; }

}  // namespace

void CommunicatorDeadlineTest::ExpectDeadline(
    const std::function<Result<void>(Communicator&)>& call) {
  World& world = Make(kShortTimeout);
  const int absent = GetParam().world_size - 1;
  RunRanks(world, [&](Communicator& communicator) {
    if (communicator.rank() == absent) return;
    EXPECT_THAT(call(communicator), IsError(ErrorCode::kUnavailable, "rank"));
    ByteVector some(8);
    EXPECT_THAT(communicator.Barrier(), IsError(ErrorCode::kFailedPrecondition, "broke"));
    EXPECT_THAT(communicator.Broadcast(some, 0), IsError(ErrorCode::kFailedPrecondition, "broke"));
    EXPECT_THAT(communicator.Split(0, 0), IsError(ErrorCode::kFailedPrecondition, "broke"));
  });
}

namespace {

TEST_P(CommunicatorDeadlineTest, BarrierEndsWithoutARankThatNeverArrives) {
  ExpectDeadline([](Communicator& communicator) { return communicator.Barrier(); });
}

TEST_P(CommunicatorDeadlineTest, BroadcastEndsWithoutItsRoot) {
  ExpectDeadline([](Communicator& communicator) {
    ByteVector bytes(100'000);
    return communicator.Broadcast(bytes, communicator.world_size() - 1);
  });
}

TEST_P(CommunicatorDeadlineTest, AllGatherEndsWithoutARankThatNeverArrives) {
  ExpectDeadline([](Communicator& communicator) {
    const ByteVector mine(100'000);
    std::vector<ByteVector> all(static_cast<size_t>(communicator.world_size()),
                                ByteVector(100'000));
    return communicator.AllGather(mine, TargetsOf(all));
  });
}

TEST_P(CommunicatorDeadlineTest, SplitEndsWithoutARankThatNeverArrives) {
  ExpectDeadline([](Communicator& communicator) -> Result<void> {
    CAIRN_TRY(communicator.Split(0, 0));
    return {};
  });
}

TEST_P(CommunicatorDeadlineTest, InterruptEndsACallThatWaits) {
  World& world = Make(kAmpleTimeout);
  Communicator& waiting = *world.front();
  std::jthread interrupting([&] {
    std::this_thread::sleep_for(milliseconds(30));  // usually until the call waits
    waiting.Interrupt();
  });
  EXPECT_THAT(waiting.Barrier(), IsError(ErrorCode::kUnavailable, "interrupted"));
  EXPECT_THAT(waiting.Barrier(), IsError(ErrorCode::kFailedPrecondition, "broke"));
}

TEST_P(CommunicatorDisagreementTest, RanksThatDisagreeOnTheRootFailAndKeepToTheirRanges) {
  World& world = Make(kShortTimeout);
  RunRanks(world, [&](Communicator& communicator) {
    ByteVector bytes(1000, std::byte{1});
    // Each rank passes itself as the root: all send, none receives.
    EXPECT_THAT(communicator.Broadcast(bytes, communicator.rank()),
                IsError(ErrorCode::kUnavailable, "Broadcast"));
    EXPECT_EQ(bytes, ByteVector(1000, std::byte{1}));
  });
}

TEST_P(CommunicatorDisagreementTest, RanksThatDisagreeOnTheLengthFailAndKeepToTheirRanges) {
  World& world = Make(kShortTimeout);
  RunRanks(world, [&](Communicator& communicator) {
    // The receivers' memory is shorter than what the root sends.
    ByteVector bytes(communicator.rank() == 0 ? 100'000 : 10);
    EXPECT_THAT(communicator.Broadcast(bytes, 0), IsError(ErrorCode::kUnavailable, "Broadcast"));
  });
}

TEST_P(CommunicatorDisagreementTest, RanksThatCallDifferentCollectivesFail) {
  World& world = Make(kShortTimeout);
  RunRanks(world, [&](Communicator& communicator) {
    ByteVector bytes(10);
    std::vector<ByteVector> all(world.size(), ByteVector(10));
    EXPECT_THAT(communicator.rank() == 0 ? communicator.Broadcast(bytes, 0)
                                         : communicator.Gather(bytes, TargetsOf(all), 0),
                IsError(ErrorCode::kUnavailable, "rank"));
  });
}

}  // namespace
}  // namespace cairn::testing
