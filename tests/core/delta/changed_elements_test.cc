// Every set of vector instructions that this processor has finds the same elements.

#include "core/codec/internal/changed_elements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <memory>

#include "core/codec/internal/delta_format.h"
#include "tests/core/delta/delta_fixture.h"
#include "tests/support/scoped_vector_target.h"
#include "tests/support/seeded_random.h"

namespace cairn::core::internal {
namespace {

using ::testing::ElementsAreArray;
using testing::ScopedVectorTarget;
using testing::SeededRandom;
using testing::VectorTargets;

template <typename T>
class ChangedElementsTest : public ::testing::Test {
 protected:
  SeededRandom random_;
};
using ElementTypes = ::testing::Types<uint8_t, uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(ChangedElementsTest, ElementTypes);

template <typename T>
void ExpectFound(const std::vector<T>& base, const std::vector<T>& page, uint8_t threshold) {
  auto found = std::make_unique<PageElements>();
  FindElements(sizeof(T), std::as_bytes(std::span(base)), std::as_bytes(std::span(page)), threshold,
               *found);
  std::vector<uint16_t> expected_sparse;
  std::vector<uint16_t> expected_dense;
  for (size_t i = 0; i < base.size(); ++i) {
    if (threshold != 0 && IsDense(base[i], threshold)) {
      expected_dense.push_back(static_cast<uint16_t>(i));
    } else if (base[i] != page[i]) {
      expected_sparse.push_back(static_cast<uint16_t>(i));
    }
  }
  EXPECT_THAT(found->sparse.span(), ElementsAreArray(expected_sparse));
  EXPECT_THAT(found->dense.span(), ElementsAreArray(expected_dense));
  if (threshold == 0) return;
  auto dense = std::make_unique<ElementList>();
  FindDenseElements(sizeof(T), std::as_bytes(std::span(base)), threshold, *dense);
  EXPECT_THAT(dense->span(), ElementsAreArray(expected_dense));
}

TYPED_TEST(ChangedElementsTest, FindsTheSameWithEverySetOfInstructions) {
  using T = TypeParam;
  const size_t most = kv::kPageBytes / sizeof(T);
  for (const int64_t target : VectorTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const ScopedVectorTarget scope(target);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{63}, size_t{64}, size_t{65},
                               size_t{130}, most - 1, most}) {
      std::vector<T> base(count);
      this->random_.Fill(std::as_writable_bytes(std::span(base)));
      for (const double density : {0.0, 0.01, 0.5, 1.0}) {
        std::vector<T> page = base;
        for (T& element : page) {
          if (this->random_.Chance(density)) element ^= static_cast<T>(T{1} << (8 * sizeof(T) - 1));
        }
        for (const int threshold : {0, 1, 100, 254}) {
          ExpectFound(base, page, static_cast<uint8_t>(threshold));
        }
      }
    }
  }
}

TEST(DeltaTargetTest, WritesTheSameBytesWithEverySetOfInstructions) {
  SeededRandom random;
  const auto base = RandomWeights(random, 3 * kv::kPageBytes / 2 + 77);
  const Bytes before = ToBytes(base);
  const Bytes after = ToBytes(Changed(random, base, 0.05));
  const Bytes expected = Encode(2, before, after);
  for (const int64_t target : VectorTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const ScopedVectorTarget scope(target);
    EXPECT_TRUE(Encode(2, before, after) == expected);
    const auto decoded = Decode(expected, before);
    EXPECT_TRUE(decoded.has_value() && *decoded == after);
  }
}

}  // namespace
}  // namespace cairn::core::internal
