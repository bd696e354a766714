// Rendezvous by files and at an address of rank 0, with correct and misbehaving peers.

#include "core/ranks/internal/rendezvous.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/free_port.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"

namespace cairn::core::internal {
namespace {

using cairn::testing::FreePort;
using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using Pieces = std::vector<std::string>;
using std::chrono::milliseconds;

Deadline In(milliseconds time) { return std::chrono::steady_clock::now() + time; }
constexpr milliseconds kAmple = std::chrono::seconds(30);
constexpr milliseconds kShort(200);
/// Passes in a test, and is ample for ranks that arrive on a busy machine.
constexpr milliseconds kEnding(3'000);

std::string Hello(uint32_t rank) {
  return EncodeRecord({.rank = rank, .world_size = 3, .run_id = "run", .messages = {"", "", ""}});
}

TEST(RendezvousRecordTest, RejectsTruncationDamageAndExtraBytes) {
  const std::string bytes = Hello(1);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(DecodeRecord(bytes.substr(0, length))) << length;
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x41);
    EXPECT_THAT(DecodeRecord(damaged), IsError(ErrorCode::kDataLoss, "")) << i;
  }
  EXPECT_THAT(DecodeRecord(bytes + "x"), IsError(ErrorCode::kDataLoss, ""));
}

TEST(EndpointTest, ParsesUrls) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const Endpoint files, ParseEndpoint("file:///shared/dir"));
  EXPECT_EQ(files.directory, "/shared/dir");
  CAIRN_ASSERT_OK_AND_ASSIGN(const Endpoint address, ParseEndpoint("tcp://[::1]:29500"));
  EXPECT_EQ(address.host, "::1");
  EXPECT_EQ(address.port, "29500");
}

TEST(FileRendezvousTest, SecondOfTheSameRankAndStaleRunsAreRefused) {
  ScopedTempDir dir;
  const Party party{.rank = 0, .world_size = 2, .run_id = "run"};
  EXPECT_THAT(MeetByFile(dir.path(), party, {"", "a"}, In(kShort)),
              IsError(ErrorCode::kUnavailable, "in time: 1 of 2"));
  // The file of the first one still exists, as if it had died.
  EXPECT_THAT(MeetByFile(dir.path(), party, {"", "a"}, In(kAmple)),
              IsError(ErrorCode::kFailedPrecondition, "another run id"));
  const Party next{.rank = 0, .world_size = 2, .run_id = "run-2"};
  EXPECT_THAT(MeetByFile(dir.path(), next, {"", "a"}, In(kShort)),
              IsError(ErrorCode::kUnavailable, "1 of 2"));
}

TEST(FileRendezvousTest, WaitsForAnIncompleteFile) {
  ScopedTempDir dir;
  const std::string bytes =
      EncodeRecord({.rank = 1, .world_size = 2, .run_id = "run", .messages = {"from 1 to 0", ""}});
  std::filesystem::create_directories(dir / "run");
  std::ofstream file(dir / "run/rank-1", std::ios::binary);
  file << bytes.substr(0, bytes.size() / 2) << std::flush;
  const Party party{.rank = 0, .world_size = 2, .run_id = "run"};
  EXPECT_THAT(MeetByFile(dir.path(), party, {"", "a"}, In(kShort)),
              IsError(ErrorCode::kUnavailable, "1 of 2"));

  file << bytes.substr(bytes.size() / 2) << std::flush;
  std::filesystem::remove(dir / "run/rank-0");
  CAIRN_ASSERT_OK_AND_ASSIGN(const Pieces found,
                             MeetByFile(dir.path(), party, {"", "a"}, In(kAmple)));
  EXPECT_THAT(found, ::testing::ElementsAre("", "from 1 to 0"));
}

TEST(FileRendezvousTest, ForgetsTheFilesOfTheRanksAndNoOthers) {
  ScopedTempDir dir;
  for (const char* name : {"run/rank-0", "run/rank-1", "run/rank-2", "run/model", "run/sub/file"}) {
    std::filesystem::create_directories(std::filesystem::path(dir / name).parent_path());
    std::ofstream(dir / name) << "x";
  }
  const Party party{.rank = 0, .world_size = 2, .run_id = "run"};
  CAIRN_ASSERT_OK(ForgetFiles(dir.path(), party));
  for (const char* name : {"run/rank-2", "run/model", "run/sub/file"}) {
    EXPECT_TRUE(std::filesystem::exists(dir / name)) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(dir / "run/rank-0"));

  std::filesystem::create_directory(dir / "empty");
  std::ofstream(dir / "empty/rank-1") << "x";
  CAIRN_ASSERT_OK(ForgetFiles(dir.path(), {.rank = 0, .world_size = 2, .run_id = "empty"}));
  EXPECT_FALSE(std::filesystem::exists(dir / "empty"));
}

TEST(FileRendezvousTest, RankOfAnotherWorldIsRefused) {
  ScopedTempDir dir;
  std::filesystem::create_directories(dir / "run");
  std::ofstream(dir / "run/rank-1", std::ios::binary)
      << EncodeRecord({.rank = 1, .world_size = 3, .run_id = "run", .messages = {"", "", ""}});
  EXPECT_THAT(
      MeetByFile(dir.path(), {.rank = 0, .world_size = 2, .run_id = "run"}, {"", "a"}, In(kAmple)),
      IsError(ErrorCode::kFailedPrecondition, "rank 1 of 3"));
}

/// Rank 0 of a world of three, which listens on a free port in another thread.
class TcpRendezvousTest : public ::testing::Test {
 protected:
  void Serve(milliseconds time) {
    server_ = std::jthread([this, time] {
      served_ = ServeTcpMeeting(place_, PartyOf(0), {"", "0 to 1", "0 to 2"}, In(time));
    });
  }
  Result<Pieces> Join(int rank) {
    return JoinTcpMeeting(
        place_, PartyOf(rank),
        {fmt::format("{} to 0", rank), fmt::format("{} to 1", rank), fmt::format("{} to 2", rank)},
        In(kAmple));
  }
  /// Lets both other ranks join. Every rank must receive the messages for it.
  void ExpectMeeting() {
    Result<Pieces> second;
    std::jthread other([&] { second = Join(2); });
    CAIRN_ASSERT_OK_AND_ASSIGN(const Pieces first, Join(1));
    other.join();
    server_.join();
    CAIRN_ASSERT_OK(second);
    CAIRN_ASSERT_OK(served_);
    EXPECT_THAT(first, ::testing::ElementsAre("0 to 1", "1 to 1", "2 to 1"));
    EXPECT_THAT(*second, ::testing::ElementsAre("0 to 2", "1 to 2", "2 to 2"));
    EXPECT_THAT(*served_, ::testing::ElementsAre("", "1 to 0", "2 to 0"));
  }
  static Party PartyOf(int rank) { return {.rank = rank, .world_size = 3, .run_id = "run"}; }

  /// Opens a connection on which a test sends arbitrary bytes. Waits until rank 0 listens.
  int Connect() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port_);
    while (true) {
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
      ::close(fd);
      std::this_thread::yield();
    }
  }
  static void Say(int fd, const std::string& words) {
    EXPECT_EQ(::send(fd, words.data(), words.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(words.size()));
  }
  /// Returns everything that rank 0 sends until it closes the connection.
  static std::string Hear(int fd) {
    std::string heard;
    char message[4096];
    ssize_t count;
    while ((count = ::recv(fd, message, sizeof(message), 0)) > 0) {
      heard.append(message, static_cast<size_t>(count));
    }
    return heard;
  }
  /// Says `words` on a new connection, and returns the answer.
  std::string AnswerTo(const std::string& words) {
    const int fd = Connect();
    Say(fd, words);
    std::string heard = Hear(fd);
    ::close(fd);
    return heard;
  }
  /// Connects as a rank and disconnects at once.
  void ComeAndGo(uint32_t rank) {
    const int fd = Connect();
    Say(fd, Hello(rank));
    ::close(fd);
  }

  const uint16_t port_ = FreePort();
  const Endpoint place_{.host = "127.0.0.1", .port = std::to_string(port_)};
  Result<Pieces> served_;
  std::jthread server_;  // last, because it uses the other members
};

TEST_F(TcpRendezvousTest, RanksMayArriveBeforeRankZero) {
  Result<Pieces> early;
  std::jthread second([&] { early = Join(2); });
  Result<Pieces> first;
  std::jthread other([&] { first = Join(1); });
  Serve(kAmple);
  second.join();
  other.join();
  server_.join();
  CAIRN_EXPECT_OK(early);
  CAIRN_EXPECT_OK(first);
  CAIRN_EXPECT_OK(served_);
}

TEST_F(TcpRendezvousTest, ConnectionsWithNoiseAreClosed) {
  Serve(kAmple);
  SeededRandom random;
  const std::string hello = Hello(1);
  for (int i = 0; i < 50; ++i) {
    std::string noise = hello;
    // Longer than a header, so that rank 0 checks each one; some begin like a record.
    for (size_t b = random.Chance(0.5) ? 16 : 0; b < noise.size(); ++b) {
      noise[b] = static_cast<char>(random.Between(0, 255));
    }
    EXPECT_EQ(AnswerTo(noise), "");
  }
  std::string promise = hello;
  for (size_t i = 8; i < 16; ++i) promise[i] = '\x7f';
  EXPECT_EQ(AnswerTo(promise), "") << "a promise of many bytes is refused at once";
  ExpectMeeting();
}

TEST_F(TcpRendezvousTest, SilentConnectionsDoNotBlockRanks) {
  Serve(kAmple);
  std::vector<int> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(Connect());
  ExpectMeeting();
  for (const int fd : silent) ::close(fd);
}

TEST_F(TcpRendezvousTest, ForeignRanksAreRefusedWithAReason) {
  Serve(kAmple);
  const auto answer_to = [&](const RendezvousRecord& hello) {
    const auto answer = DecodeRecord(AnswerTo(EncodeRecord(hello)));
    EXPECT_TRUE(answer && answer->kind == RendezvousRecord::Kind::kRefusal);
    return answer && answer->messages.size() == 1 ? answer->messages[0] : "";
  };
  const Pieces messages = {"", "", ""};
  EXPECT_THAT(answer_to({.rank = 1, .world_size = 3, .run_id = "old", .messages = messages}),
              ::testing::HasSubstr("of run 'run', not 'old'"));
  EXPECT_THAT(answer_to({.rank = 1, .world_size = 4, .run_id = "run", .messages = messages}),
              ::testing::HasSubstr("world of 3 ranks, not 4"));
  EXPECT_THAT(answer_to({.rank = 1, .world_size = 3, .run_id = "run", .messages = {""}}),
              ::testing::HasSubstr("world of 3"));
  EXPECT_THAT(answer_to({.rank = 3, .world_size = 3, .run_id = "run", .messages = messages}),
              ::testing::HasSubstr("no rank 3"));
  EXPECT_THAT(answer_to({.rank = 0, .world_size = 3, .run_id = "run", .messages = messages}),
              ::testing::HasSubstr("rank 0 already"));
  Party stranger = PartyOf(1);
  stranger.run_id = "other";
  EXPECT_THAT(JoinTcpMeeting(place_, stranger, messages, In(kAmple)),
              IsError(ErrorCode::kFailedPrecondition, "refuses rank 1"));
  ExpectMeeting();
}

TEST_F(TcpRendezvousTest, RankThatDisconnectedMayReconnect) {
  Serve(kAmple);
  ComeAndGo(1);
  // Rank 0 handles connections in the order in which they arrive: the end of the first one comes
  // first.
  ExpectMeeting();
}

TEST_F(TcpRendezvousTest, AtTheDeadlineAllRanksLearnWhichAreMissing) {
  Serve(kEnding);
  EXPECT_THAT(Join(2), IsError(ErrorCode::kUnavailable, "in time: 1 of 3"));
  server_.join();
  EXPECT_THAT(served_, IsError(ErrorCode::kUnavailable, "in time: 1 of 3"));
}

TEST_F(TcpRendezvousTest, RankThatLeavesBeforeTheDeadlineIsNotBlamedForOneThatNeverCame) {
  Serve(kEnding);
  ComeAndGo(1);
  server_.join();
  EXPECT_THAT(served_, IsError(ErrorCode::kUnavailable, "did not arrive in time: 2 of 3"));
}

TEST_F(TcpRendezvousTest, RankThatLeavesIsNamedWhenAllHadCome) {
  Serve(kEnding);
  for (const uint32_t rank : {1u, 2u}) {
    ComeAndGo(rank);
    // Disconnects before the next rank arrives, otherwise all ranks would be present.
    EXPECT_EQ(AnswerTo("not a record, but long enough"), "");
  }
  server_.join();
  EXPECT_THAT(served_, IsError(ErrorCode::kUnavailable, "came and went: 1, 2 of 3"));
}

TEST_F(TcpRendezvousTest, PortInUseIsAnErrorAtOnce) {
  Serve(kAmple);
  ::close(Connect());  // it listens
  EXPECT_THAT(ServeTcpMeeting(place_, PartyOf(0), {"", "", ""}, In(kAmple)),
              IsError(ErrorCode::kUnavailable, "cannot listen"));
  ExpectMeeting();
}

}  // namespace
}  // namespace cairn::core::internal
