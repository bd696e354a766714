// State dicts on ranks that are processes: their memory, and a rank that dies.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <sstream>

#include "tests/process/child.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {
namespace {

constexpr int kWorldSize = 4;
constexpr uint64_t kTensorBytes = 96 << 20;
constexpr uint64_t kBufferBytes = 4 << 20;
// Stacks, buffers of sockets, heap.
constexpr uint64_t kSlackKib = 8 << 10;

using Ranks = std::vector<std::unique_ptr<Child>>;

Ranks StartRanks(const ScopedTempDir& dir, int victim = -1, int die_at_call = 0) {
  Ranks ranks;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    std::vector<std::string> arguments = {
        CAIRN_STATE_DICT_PROGRAM, std::to_string(rank),         std::to_string(kWorldSize),
        "file://" + dir.path(),   std::to_string(kTensorBytes), std::to_string(kBufferBytes)};
    if (rank == victim) arguments.push_back(std::to_string(die_at_call));
    ranks.push_back(std::make_unique<Child>(arguments));
  }
  return ranks;
}

// The caller provides the memory of the tensors. A call needs only its buffer, although the tensor
// is 24 times as long.
TEST(StateDictRanksTest, CallsNeedOnlyTheirBuffers) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer needs several times the memory of the program";
#endif
  ScopedTempDir dir;
  const Ranks ranks = StartRanks(dir);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const std::string said = ranks[static_cast<size_t>(rank)]->ReadLine().value_or("nothing");
    std::istringstream line(said);
    std::string word;
    uint64_t broadcast_kib = 0, gather_kib = 0;
    line >> word >> broadcast_kib >> gather_kib;
    ASSERT_EQ(word, "ok") << "rank " << rank << ": " << said;
    const uint64_t bound_kib = kBufferBytes / 1024 + kSlackKib;
    EXPECT_LE(broadcast_kib, bound_kib) << "rank " << rank;
    EXPECT_LE(gather_kib, bound_kib) << "rank " << rank;
  }
}

// Calls 1 to 3 exchange descriptions, later ones transfer the tensor.
class DeadRankTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, DeadRankTest, ::testing::Values(1, 3, 10),
                         [](const auto& info) { return "AtCall" + std::to_string(info.param); });

TEST_P(DeadRankTest, IsReportedByAllOthers) {
  constexpr int kVictim = 2;
  ScopedTempDir dir;
  const Ranks ranks = StartRanks(dir, kVictim, GetParam());
  EXPECT_EQ(ranks[kVictim]->Wait(), -SIGKILL);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    if (rank == kVictim) continue;
    std::istringstream line(ranks[static_cast<size_t>(rank)]->ReadLine().value_or("nothing"));
    std::string word, code;
    line >> word >> code;
    EXPECT_EQ(word, "error") << "rank " << rank;
    EXPECT_EQ(code, "Unavailable") << "rank " << rank;
  }
}

}  // namespace
}  // namespace cairn::testing
