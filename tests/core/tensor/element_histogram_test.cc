#include <complex>
#include <limits>
#include <numeric>

#include "core/tensor/element_statistics.h"
#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

template <typename T>
Histogram Of(DType dtype, const std::vector<T>& elements, double low, double high, size_t bins) {
  HistogramAccumulator accumulator(dtype, low, high, bins);
  accumulator.Add(std::as_bytes(std::span(elements)));
  return accumulator.histogram();
}

TEST(ElementHistogramTest, BinsOfFloatsHaveEqualWidthAndTheLastIncludesItsEnd) {
  const Histogram histogram =
      Of<float>(DType::kFloat32, {-1, -0.75f, -0.5f, 0.25f, 0.5f, 1, kNan, kInf, -kInf}, -1, 1, 4);
  EXPECT_EQ(histogram.low, -1);
  EXPECT_EQ(histogram.width, 0.5);
  EXPECT_THAT(histogram.counts, ElementsAre(2, 1, 1, 2));
}

TEST(ElementHistogramTest, BinsOfIntegersHaveAWholeWidth) {
  const Histogram each = Of<int16_t>(DType::kInt16, {-2, -2, 0, 3}, -2, 3, 64);
  EXPECT_EQ(each.width, 1);
  EXPECT_THAT(each.counts, ElementsAre(2, 0, 1, 0, 0, 1));

  const Histogram wide = Of<uint8_t>(DType::kUInt8, {0, 3, 4, 255}, 0, 255, 64);
  EXPECT_EQ(wide.width, 4);
  ASSERT_EQ(wide.counts.size(), 64u);
  EXPECT_EQ(wide.counts[0], 2u);
  EXPECT_EQ(wide.counts[1], 1u);
  EXPECT_EQ(wide.counts[63], 1u);
}

TEST(ElementHistogramTest, OneValueIsOneBin) {
  const Histogram histogram = Of<double>(DType::kFloat64, {2.5, 2.5}, 2.5, 2.5, 64);
  EXPECT_EQ(histogram.low, 2.5);
  EXPECT_EQ(histogram.width, 0);
  EXPECT_THAT(histogram.counts, ElementsAre(2));
}

TEST(ElementHistogramTest, RangesAtTheLimitsOfDoubleDoNotOverflow) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const Histogram widest =
      Of<double>(DType::kFloat64, {-kMost, -kMost / 4, kMost / 4, kMost}, -kMost, kMost, 4);
  EXPECT_THAT(widest.counts, ElementsAre(1, 1, 1, 1));

  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  const Histogram closest = Of<double>(DType::kFloat64, {0, kLeast}, 0, kLeast, 64);
  EXPECT_EQ(std::accumulate(closest.counts.begin(), closest.counts.end(), uint64_t{0}), 2u);

  const Histogram integers =
      Of<uint64_t>(DType::kUInt64, {0, ~uint64_t{0}}, 0, static_cast<double>(~uint64_t{0}), 64);
  ASSERT_EQ(integers.counts.size(), 64u);
  EXPECT_EQ(integers.counts.front(), 1u);
  EXPECT_EQ(integers.counts.back(), 1u);
}

TEST(ElementHistogramTest, ValuesBeyondTheRangeCountInTheOuterBins) {
  EXPECT_THAT(Of<float>(DType::kFloat32, {-5, 0, 1, 9}, 0, 1, 2).counts, ElementsAre(2, 2));
}

TEST(ElementHistogramTest, CountsWhatStatisticsCount) {
  // A complex number is its magnitude, and a byte of 4-bit floats is two values.
  EXPECT_THAT(
      Of<std::complex<float>>(DType::kComplex64, {{3, 4}, {0, 0}, {kInf, kNan}}, 0, 5, 2).counts,
      ElementsAre(1, 1));
  EXPECT_THAT(Of<uint8_t>(DType::kFloat4E2M1FNx2, {0x72}, 0, 6, 2).counts, ElementsAre(1, 1));
  EXPECT_THAT(Of<uint8_t>(DType::kBool, {0, 1, 7}, 0, 1, 64).counts, ElementsAre(1, 2));
  EXPECT_THAT(Of<uint8_t>(DType::kUnknown, {1, 2}, 0, 2, 2).counts, Each(0));
}

TEST(ElementHistogramTest, StreamsOfPartsAreOneHistogram) {
  std::vector<int32_t> elements(20'000);
  std::iota(elements.begin(), elements.end(), 0);
  HistogramAccumulator accumulator(DType::kInt32, 0, 19'999, 40);
  const auto bytes = std::as_bytes(std::span(elements));
  accumulator.Add(bytes.first(4 * 7'001));
  accumulator.Add(bytes.subspan(4 * 7'001));
  EXPECT_THAT(accumulator.histogram().counts, Each(500));
}

}  // namespace
}  // namespace cairn::core
