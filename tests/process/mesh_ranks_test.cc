// Goal: ranks that are processes save on any mesh and load on any other.
//
// CAIRN_MESH_ROUNDS (8) rounds of eight steps. CAIRN_TEST_SEED repeats the choices of a run.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/process/mesh_job.h"
#include "tests/support/seeded_random.h"
#include "tests/support/store_address.h"

namespace cairn::core::testing {
namespace {

using cairn::testing::MeshJob;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using cairn::testing::Setting;

class MeshRanksTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(dir_ / "meet"); }

  void ExpectAllOk(MeshJob run) {
    for (size_t rank = 0; rank < run.size(); ++rank) {
      const auto lines = run[rank].ReadLines();
      EXPECT_TRUE(!lines.empty() && lines.back() == "ok")
          << "rank " << rank << ": " << (lines.empty() ? "nothing" : lines.back());
      EXPECT_EQ(run[rank].Wait(), 0) << "rank " << rank;
    }
  }

  ScopedTempDir dir_{cairn::testing::FastDirectory()};
  std::string store_ = cairn::testing::NewStoreAddress(dir_, "store");
};

TEST_F(MeshRanksTest, ProcessesLoadWhatOtherProcessesSaved) {
  constexpr int kSteps = 8;
  SeededRandom random;
  fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
  const int rounds = Setting("CAIRN_MESH_ROUNDS", 8);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    store_ = cairn::testing::NewStoreAddress(dir_, fmt::format("store{}", round));
    const auto saving = static_cast<uint32_t>(random.Between(1, 8));
    const auto loading = static_cast<uint32_t>(random.Between(1, 8));
    const std::string seed = std::to_string(random.Between(0, 1u << 30));
    const std::string steps = std::to_string(kSteps);
    ExpectAllOk(
        MeshJob("save", store_, dir_ / "meet", saving, {std::to_string(loading), seed, steps}));
    if (HasFailure()) return;
    ExpectAllOk(
        MeshJob("load", store_, dir_ / "meet", loading, {std::to_string(saving), seed, steps}));
    if (HasFailure()) return;
  }
  fmt::print("{} steps\n", rounds * kSteps);
}

}  // namespace
}  // namespace cairn::core::testing
