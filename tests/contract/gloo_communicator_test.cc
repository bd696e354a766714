// Gloo with ranks that are threads of one process; tests/process/ has ranks that are processes.

#include "core/ranks/gloo_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <filesystem>
#include <thread>

#include "tests/contract/communicator_contract.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {
namespace {

using core::ConnectGloo;
using core::GlooOptions;
using std::chrono::milliseconds;

GlooOptions OptionsOf(int rank, int world_size, const std::string& directory,
                      milliseconds connect_timeout = std::chrono::seconds(300)) {
  return {.rank = rank,
          .world_size = world_size,
          .rendezvous = "file://" + directory,
          .run_id = "run",
          .interface = "127.0.0.1",
          .connect_timeout = connect_timeout};
}

/// Calls ConnectGloo for all ranks concurrently, and returns their results.
std::vector<Result<std::unique_ptr<core::Communicator>>> ConnectAll(
    const std::vector<GlooOptions>& options) {
  std::vector<Result<std::unique_ptr<core::Communicator>>> results(options.size());
  {
    std::vector<std::jthread> ranks;
    for (size_t i = 0; i < options.size(); ++i) {
      ranks.emplace_back([&, i] { results[i] = ConnectGloo(options[i]); });
    }
  }
  return results;
}

/// Returns the connected ranks. Fails the test, and returns none, if one cannot be connected.
World Connect(const std::vector<GlooOptions>& options) {
  World world;
  for (auto& result : ConnectAll(options)) {
    CAIRN_EXPECT_OK(result);
    if (!result) return {};
    world.push_back(*std::move(result));
  }
  return world;
}

World MakeGlooWorld(int world_size, milliseconds timeout) {
  const ScopedTempDir dir;
  std::vector<GlooOptions> options;
  for (int rank = 0; rank < world_size; ++rank) {
    options.push_back(OptionsOf(rank, world_size, dir.path()));
    options.back().timeout = timeout;
  }
  return Connect(options);
}

INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorContractTest,
                         ::testing::ValuesIn(Worlds(MakeGlooWorld, {1, 2, 4, 7})), WorldName);
INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorDeadlineTest,
                         ::testing::ValuesIn(Worlds(MakeGlooWorld, {2, 4})), WorldName);
INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorDisagreementTest,
                         ::testing::ValuesIn(Worlds(MakeGlooWorld, {2, 4})), WorldName);

/// A channel that the ranks of a test already have.
class MessageBoard {
 public:
  explicit MessageBoard(int world_size)
      : messages_(static_cast<size_t>(world_size)), all_have_written_(world_size) {}

  core::MessageAllGather ForRank(int rank) {
    return [this, rank](const std::string& message) -> Result<std::vector<std::string>> {
      messages_[static_cast<size_t>(rank)] = message;
      all_have_written_.arrive_and_wait();
      return messages_;
    };
  }

 private:
  std::vector<std::string> messages_;
  std::barrier<> all_have_written_;
};

std::vector<GlooOptions> OptionsOverBoard(MessageBoard& board, int world_size) {
  std::vector<GlooOptions> options;
  for (int rank = 0; rank < world_size; ++rank) {
    options.push_back({.rank = rank,
                       .world_size = world_size,
                       .all_gather = board.ForRank(rank),
                       .interface = "127.0.0.1",
                       .connect_timeout = std::chrono::seconds(300)});
  }
  return options;
}

TEST(ConnectGlooTest, ConnectsOverTheChannelOfTheCaller) {
  MessageBoard board(3);
  World world = Connect(OptionsOverBoard(board, 3));
  ASSERT_EQ(world.size(), 3u);
  RunRanks(world, [](core::Communicator& communicator) {
    CAIRN_EXPECT_OK(communicator.Barrier());
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto half, communicator.Split(0, 0));
    CAIRN_EXPECT_OK(half->Barrier());
  });
}

TEST(ConnectGlooTest, ARankThatCannotListenIsNamedOnAllRanks) {
  MessageBoard board(3);
  auto options = OptionsOverBoard(board, 3);
  options[1].interface = "203.0.113.1";  // an address for documentation, which no host has
  const auto connected = ConnectAll(options);
  EXPECT_THAT(connected[1], IsError(ErrorCode::kUnavailable, "203.0.113.1"));
  for (const size_t rank : {0, 2}) {
    EXPECT_THAT(connected[rank], IsError(ErrorCode::kUnavailable, "rank 1 could not take part"));
  }
}

TEST(ConnectGlooTest, RefusesWhatTheChannelMustNotReturn) {
  MessageBoard board(1);
  auto options = OptionsOverBoard(board, 2);
  options[0].all_gather = [](const std::string& mine) { return std::vector<std::string>{mine}; };
  EXPECT_THAT(ConnectGloo(options[0]), IsError(ErrorCode::kUnavailable, "1 messages for 2 ranks"));
  options[0].all_gather = [](const std::string&) { return std::vector<std::string>(2, "short"); };
  EXPECT_THAT(ConnectGloo(options[0]),
              IsError(ErrorCode::kUnavailable, "rank 1 could not take part"));
  options[0].all_gather = [](const std::string&) -> Result<std::vector<std::string>> {
    return Fail(ErrorCode::kInternal, "of the channel");
  };
  EXPECT_THAT(ConnectGloo(options[0]), IsError(ErrorCode::kInternal, "of the channel"));
}

TEST(ConnectGlooTest, BindsAnInterfaceByNameOrByTheRouteToAHost) {
  ScopedTempDir dir;
  std::vector<GlooOptions> options = {OptionsOf(0, 2, dir.path()), OptionsOf(1, 2, dir.path())};
  options[0].interface = "lo";
  options[1].interface = "";
  options[1].route_to = "localhost";
  for (const auto& result : ConnectAll(options)) CAIRN_EXPECT_OK(result);
}

TEST(ConnectGlooTest, LeavesNothingAtTheRendezvous) {
  ScopedTempDir dir;
  const auto connected = ConnectAll({OptionsOf(0, 2, dir.path()), OptionsOf(1, 2, dir.path())});
  for (const auto& result : connected) CAIRN_ASSERT_OK(result);
  EXPECT_TRUE(std::filesystem::is_empty(dir / "rendezvous"));
  // The next start may therefore use the same run ID.
  for (const auto& result :
       ConnectAll({OptionsOf(0, 2, dir.path()), OptionsOf(1, 2, dir.path())})) {
    CAIRN_EXPECT_OK(result);
  }
}

TEST(ConnectGlooTest, NamesTheMissingRanks) {
  constexpr milliseconds kEnding(3'000);  // ample for ranks that arrive on a busy machine
  ScopedTempDir dir;
  std::vector<GlooOptions> options;
  for (const int rank : {0, 2, 3}) options.push_back(OptionsOf(rank, 5, dir.path(), kEnding));
  for (const auto& result : ConnectAll(options)) {
    EXPECT_THAT(result, IsError(ErrorCode::kUnavailable, "did not arrive in time: 1, 4 of 5"));
  }
}

TEST(GlooConnectionsTest, CheckPeersReportsARankThatIsGone) {
  World world = MakeGlooWorld(3, std::chrono::seconds(300));
  ASSERT_EQ(world.size(), 3u);
  for (int round = 0; round < 3; ++round) {
    for (const auto& rank : world) CAIRN_EXPECT_OK(rank->CheckPeers());
    RunRanks(world, [](core::Communicator& rank) { CAIRN_EXPECT_OK(rank.Barrier()); });
  }
  world.pop_back();
  for (const auto& rank : world) {
    Result<void> checked;
    while ((checked = rank->CheckPeers())) {
      std::this_thread::yield();
    }
    EXPECT_THAT(checked, IsError(ErrorCode::kUnavailable, "the connection to rank 2"));
  }
}

TEST(ConnectGlooTest, WorldOfOneNeedsNoRendezvous) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto communicator, ConnectGloo({.rendezvous = ""}));
  EXPECT_EQ(communicator->world_size(), 1);
}

TEST(ConnectGlooTest, RejectsInvalidOptions) {
  const GlooOptions right = OptionsOf(0, 2, "/nowhere");
  const auto refused = [&](auto&& change, const char* words) {
    GlooOptions options = right;
    change(options);
    EXPECT_THAT(ConnectGloo(options), IsError(ErrorCode::kInvalidArgument, words));
  };
  refused([](GlooOptions& o) { o.rank = 2; }, "rank 2 of 2");
  refused([](GlooOptions& o) { o.rank = -1; }, "rank -1");
  refused([](GlooOptions& o) { o.world_size = 0; }, "of 0");
  refused([](GlooOptions& o) { o.world_size = core::kMaxGlooRanks + 1; }, "4097");
  refused([](GlooOptions& o) { o.timeout = milliseconds(0); }, "timeouts of 0");
  refused([](GlooOptions& o) { o.connect_timeout = milliseconds(-1); }, "and -1 ms");
  for (const char* run_id : {"", "..", ".a", "a/b", "a b", "\n"}) {
    refused([&](GlooOptions& o) { o.run_id = run_id; }, "run id");
  }
  refused([](GlooOptions& o) { o.run_id = std::string(129, 'a'); }, "run id");
  refused([](GlooOptions& o) { o.rendezvous = ""; }, "no path or name");
  refused([](GlooOptions& o) { o.rendezvous = "tcp://host:1"; }, "unknown kind of storage");
}

TEST(ConnectGlooTest, RejectsAnAddressOfAnotherHost) {
  GlooOptions options = OptionsOf(0, 2, "/nowhere");
  options.interface = "192.0.2.1";  // an address for documentation, RFC 5737
  EXPECT_THAT(ConnectGloo(options), IsError(ErrorCode::kUnavailable, "192.0.2.1"));
  options.interface = "no-such-interface";
  EXPECT_THAT(ConnectGloo(options), IsError(ErrorCode::kUnavailable, "no-such-interface"));
}

}  // namespace
}  // namespace cairn::testing
