// Ranks that are processes: they connect, and some of them die, hang or never connect.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <sstream>

#include "tests/process/child.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kWorldSize = 4;
constexpr int kVictim = 2;  // in a broadcast it forwards to rank 3 what it receives from rank 0
constexpr int64_t kNeverMs = 3'600'000;  // longer than a test may take

using Ranks = std::vector<std::unique_ptr<Child>>;

Ranks StartRanks(const std::vector<int>& ranks, const std::string& mode,
                 const std::string& rendezvous, int64_t connect_ms, int64_t timeout_ms,
                 const std::vector<std::string>& more = {}) {
  Ranks started;
  for (const int rank : ranks) {
    std::vector<std::string> arguments = {
        CAIRN_RANK_PROGRAM,         mode,       std::to_string(rank),
        std::to_string(kWorldSize), rendezvous, std::to_string(connect_ms),
        std::to_string(timeout_ms)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    started.push_back(std::make_unique<Child>(arguments));
  }
  return started;
}

/// The parts of "error CODE MS MESSAGE".
struct Report {
  std::string word, code, message;
  int64_t time_ms = 0;
};
Report ReadReport(Child& child) {
  std::istringstream line(child.ReadLine().value_or("nothing"));
  Report report;
  line >> report.word >> report.code >> report.time_ms;
  std::getline(line, report.message);
  return report;
}

std::string ByFile(const ScopedTempDir& dir) { return "file://" + dir.path(); }

TEST(RanksMeetTest, FourProcessesExchangeRanges) {
  ScopedTempDir dir;
  const Ranks ranks = StartRanks({0, 1, 2, 3}, "exchange", ByFile(dir), kNeverMs, kNeverMs);
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->ReadLine(), "ok");
    EXPECT_EQ(rank->Wait(), 0);
  }
}

TEST(RanksMeetTest, RankThatNeverConnectsIsNamedAtTheDeadline) {
  ScopedTempDir dir;
  const Ranks ranks = StartRanks({0, 1, 3}, "exchange", ByFile(dir), 1000, kNeverMs);
  for (const auto& rank : ranks) {
    const Report report = ReadReport(*rank);
    EXPECT_EQ(report.code, "Unavailable") << report.message;
    EXPECT_GE(report.time_ms, 900);
    EXPECT_THAT(report.message, HasSubstr("2 of 4"));
  }
}

/// Starts four ranks, starts `operation` on all of them, and has the victim send itself the signal
/// in the middle of it.
Ranks StrikeInTheMiddleOf(const std::string& operation, int signal, const std::string& rendezvous,
                          int64_t timeout_ms) {
  Ranks ranks = StartRanks({0, 1, 2, 3}, "peer", rendezvous, kNeverMs, timeout_ms,
                           {operation, std::to_string(kVictim), std::to_string(signal)});
  for (const auto& rank : ranks) EXPECT_EQ(rank->ReadLine(), "ready");
  for (const auto& rank : ranks) rank->CloseInput();
  return ranks;
}

class DeadPeerTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, DeadPeerTest,
                         ::testing::Values("broadcast", "scatter", "allgather", "alltoall"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DeadPeerTest, KilledInTheMiddleOfAMessageIsReportedBeforeTheDeadline) {
  ScopedTempDir dir;
  const Ranks ranks = StrikeInTheMiddleOf(GetParam(), SIGKILL, ByFile(dir), kNeverMs);
  EXPECT_EQ(ranks[kVictim]->Wait(), -SIGKILL);
  for (int i = 0; i < kWorldSize; ++i) {
    if (i == kVictim) continue;
    const Report report = ReadReport(*ranks[static_cast<size_t>(i)]);
    EXPECT_EQ(report.code, "Unavailable") << "rank " << i << report.message;
    EXPECT_THAT(report.message, HasSubstr("rank ")) << "rank " << i;
    EXPECT_EQ(ranks[static_cast<size_t>(i)]->ReadLine(), "then FailedPrecondition");
    EXPECT_EQ(ranks[static_cast<size_t>(i)]->Wait(), 0) << "no signal such as SIGPIPE";
  }
}

class HungPeerTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, HungPeerTest, ::testing::Values("broadcast", "alltoall"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(HungPeerTest, StoppedInTheMiddleOfAMessageIsReportedAtTheDeadline) {
  constexpr int64_t kTimeoutMs = 1500;
  ScopedTempDir dir;
  const Ranks ranks = StrikeInTheMiddleOf(GetParam(), SIGSTOP, ByFile(dir), kTimeoutMs);
  for (int i = 0; i < kWorldSize; ++i) {
    if (i == kVictim) continue;
    const Report report = ReadReport(*ranks[static_cast<size_t>(i)]);
    EXPECT_EQ(report.code, "Unavailable") << "rank " << i << report.message;
    EXPECT_EQ(ranks[static_cast<size_t>(i)]->ReadLine(), "then FailedPrecondition");
  }
}

TEST(IdlePeerTest, KilledBeforeACollectiveIsReportedByIt) {
  ScopedTempDir dir;
  const Ranks ranks =
      StartRanks({0, 1, 2, 3}, "peer", ByFile(dir), kNeverMs, kNeverMs, {"barrier"});
  for (const auto& rank : ranks) ASSERT_EQ(rank->ReadLine(), "ready");
  ranks[kVictim]->Kill();
  EXPECT_EQ(ranks[kVictim]->Wait(), -SIGKILL);
  for (const auto& rank : ranks) rank->CloseInput();
  for (int i = 0; i < kWorldSize; ++i) {
    if (i == kVictim) continue;
    const Report report = ReadReport(*ranks[static_cast<size_t>(i)]);
    EXPECT_EQ(report.code, "Unavailable") << "rank " << i << report.message;
  }
}

TEST(IdlePeerTest, StoppedBeforeACollectiveIsNamedAtTheDeadline) {
#if defined(__SANITIZE_THREAD__)
  constexpr int64_t kTimeoutMs = 15'000;  // rank 1 has to send 48 MiB before it
#else
  constexpr int64_t kTimeoutMs = 4'000;
#endif
  ScopedTempDir dir;
  const Ranks ranks =
      StartRanks({0, 1, 2, 3}, "peer", ByFile(dir), kNeverMs, kTimeoutMs, {"gather"});
  for (const auto& rank : ranks) ASSERT_EQ(rank->ReadLine(), "ready");
  ASSERT_EQ(::kill(ranks[kVictim]->pid(), SIGSTOP), 0);
  for (const auto& rank : ranks) rank->CloseInput();
  const Report root = ReadReport(*ranks[0]);
  EXPECT_EQ(root.code, "Unavailable") << root.message;
  EXPECT_THAT(root.message, HasSubstr("from rank 2"));
  EXPECT_GE(root.time_ms, kTimeoutMs - 100);
  for (const size_t i : {size_t{1}, size_t{3}}) {
    EXPECT_EQ(ReadReport(*ranks[i]).code, "Unavailable");
  }
  ::kill(ranks[kVictim]->pid(), SIGCONT);
  const Report late = ReadReport(*ranks[kVictim]);
  EXPECT_EQ(late.code, "Unavailable") << late.message;
  EXPECT_EQ(ranks[kVictim]->Wait(), 0);
}

}  // namespace
}  // namespace cairn::testing
