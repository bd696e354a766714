// Goal: of several processes that open one store for writing at the same time, one gets it, and no
// step that any of them has acknowledged is lost.
//
// CAIRN_RACE_ROUNDS (50) rounds.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/kv/store_checks.h"
#include "tests/process/child.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/store_address.h"

namespace cairn::kv {
namespace {

using cairn::testing::Child;
using cairn::testing::ScopedTempDir;
using ::testing::AnyOf;
using ::testing::StartsWith;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kWriters = 8;

uint64_t Rounds() {
  const char* rounds = std::getenv("CAIRN_RACE_ROUNDS");
  return rounds != nullptr ? std::strtoull(rounds, nullptr, 10) : 50;
}

class RaceTest : public ::testing::Test {
 protected:
  void Start(const std::string& mode) {
    for (uint64_t number = 0; number < kWriters; ++number) {
      writers_.push_back(std::make_unique<Child>(std::vector<std::string>{
          CAIRN_STORE_PROGRAM, "race", path_, std::to_string(number), mode}));
    }
  }

  std::vector<std::string> Round(const std::function<uint64_t(uint64_t)>& step_of) {
    for (uint64_t i = 0; i < kWriters; ++i) writers_[i]->Say(std::to_string(step_of(i)));
    std::vector<std::string> answers;
    for (const auto& writer : writers_) answers.push_back(writer->ReadLine().value_or("ended"));
    return answers;
  }

  void CloseAll() {
    for (const auto& writer : writers_) writer->Say("close");
    for (const auto& writer : writers_) EXPECT_EQ(writer->ReadLine(), "closed");
  }

  /// Checks that the store has exactly the acknowledged steps, given by step and version.
  void ExpectSteps(const std::map<uint64_t, uint64_t>& acknowledged) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(path_, OpenMode::kWrite, SmallBlocks()));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
    EXPECT_EQ(snapshot->step_numbers().size(), acknowledged.size());
    for (const auto& [step, version] : acknowledged) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const SampleStep loaded, LoadSample(*snapshot, step));
      EXPECT_TRUE(loaded == MakeSample(step, version, kLoopShape)) << "step " << step;
    }
    ExpectSound(*snapshot);
    ExpectNoLeftovers(path_);
  }

  ScopedTempDir dir_{cairn::testing::FastDirectory()};
  const std::string path_ = cairn::testing::NewStoreAddress(dir_, "store");
  std::vector<std::unique_ptr<Child>> writers_;
};

TEST_F(RaceTest, EachRoundHasOneWinner) {
  Start("refuse");
  std::map<uint64_t, uint64_t> acknowledged;
  std::vector<uint64_t> wins(kWriters);
  for (uint64_t round = 1; round <= Rounds(); ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    const auto answers = Round([&](uint64_t) { return round; });
    for (uint64_t i = 0; i < kWriters; ++i) {
      if (answers[i] == "won") {
        EXPECT_TRUE(acknowledged.emplace(round, i).second) << "a second winner";
        ++wins[i];
      } else {
        EXPECT_THAT(answers[i], StartsWith("lost Conflict"));
      }
    }
    EXPECT_TRUE(acknowledged.contains(round)) << "no winner";
    CloseAll();
    if (HasFailure()) return;
  }
  ExpectSteps(acknowledged);
  fmt::print("{} rounds, wins of each writer: {}\n", Rounds(), ::testing::PrintToString(wins));
}

TEST_F(RaceTest, NoStepThatWasAcknowledgedBeforeATakeOverIsLost) {
  Start("take-over");
  std::map<uint64_t, uint64_t> acknowledged;
  uint64_t fenced = 0, lost = 0;
  for (uint64_t round = 1; round <= Rounds(); ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    const auto answers = Round([&](uint64_t i) { return round * kWriters + i; });
    uint64_t winners = 0;
    for (uint64_t i = 0; i < kWriters; ++i) {
      if (answers[i] == "won") {
        acknowledged[round * kWriters + i] = i;
        ++winners;
      } else {
        EXPECT_THAT(answers[i], AnyOf(StartsWith("lost Conflict"), StartsWith("fenced Conflict")));
        ++(answers[i].starts_with("lost") ? lost : fenced);
      }
    }
    EXPECT_GT(winners, 0u);  // the last one that took over
    if (round % 8 == 0) CloseAll();
    if (HasFailure()) return;
  }
  CloseAll();
  ExpectSteps(acknowledged);
  fmt::print("{} rounds, {} steps, {} writers fenced, {} lost the race\n", Rounds(),
             acknowledged.size(), fenced, lost);
}

}  // namespace
}  // namespace cairn::kv
