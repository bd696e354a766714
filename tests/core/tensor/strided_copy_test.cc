#include "core/tensor/strided_copy.h"

#include <algorithm>

#include "tests/core/tensor/strided_fixture.h"

namespace cairn::core {
namespace {

using cairn::testing::SeededRandom;

// By definition, element i of the row-major form is the one at sum(index * stride).
TEST(StridedCopyTest, GatherMatchesTheNaiveReference) {
  SeededRandom random;
  for (int round = 0; round < 400; ++round) {
    const StridedTensor tensor = RandomStrided(random, /*may_repeat=*/true);
    const std::vector<std::byte> expected = NaiveRowMajor(tensor.view());
    const uint64_t begin = random.Between(0, expected.size());
    std::vector<std::byte> gathered(random.Between(0, expected.size() - begin));
    GatherBytes(tensor.view(), begin, gathered);
    ASSERT_TRUE(std::ranges::equal(gathered, std::span(expected).subspan(begin, gathered.size())));
  }
}

TEST(StridedCopyTest, ScatterUndoesGather) {
  SeededRandom random;
  for (int round = 0; round < 400; ++round) {
    StridedTensor tensor = RandomStrided(random, /*may_repeat=*/false);
    const std::vector<std::byte> before = tensor.memory;
    const std::vector<std::byte> payload = NaiveRowMajor(tensor.view());
    for (std::byte& b : tensor.memory) b = ~b;
    // In two parts, divided at any byte.
    const uint64_t cut = random.Between(0, payload.size());
    ScatterBytes(std::span(payload).first(cut), tensor.target(), 0);
    ScatterBytes(std::span(payload).subspan(cut), tensor.target(), cut);
    ASSERT_EQ(NaiveRowMajor(tensor.view()), payload);
    // Bytes that do not belong to an element do not change.
    uint64_t changed = 0;
    for (size_t i = 0; i < before.size(); ++i) changed += tensor.memory[i] == before[i];
    ASSERT_EQ(changed, payload.size());
  }
}

}  // namespace
}  // namespace cairn::core
