// Statistics and histograms of elements of every dtype.

#include "core/tensor/element_statistics.h"

#include <cmath>
#include <complex>
#include <limits>
#include <numeric>

#include "core/tensor/internal/element.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::SeededRandom;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Optional;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kInfF = std::numeric_limits<float>::infinity();
constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();

template <typename T>
Statistics Of(DType dtype, const std::vector<T>& elements) {
  StatisticsAccumulator accumulator(dtype);
  accumulator.Add(std::as_bytes(std::span(elements)));
  return accumulator.Finish();
}

TEST(StatisticsTest, CountsSpecialValuesApart) {
  const Statistics s = Of<float>(DType::kFloat32, {1, 0, -0.0f, kNanF, -3, kInfF});
  EXPECT_EQ(s.count, 6u);
  EXPECT_EQ(s.zeros, 2u);
  EXPECT_EQ(s.nans, 1u);
  EXPECT_EQ(s.infs, 1u);
  EXPECT_EQ(s.min, -3.0);
  EXPECT_EQ(s.max, kInf);
  EXPECT_EQ(s.finite_min, -3.0);
  EXPECT_EQ(s.finite_max, 1.0);
  EXPECT_EQ(s.max_text, "inf");
  EXPECT_THAT(s.mean, Optional(-0.5));
  EXPECT_THAT(s.std_deviation, Optional(DoubleNear(1.5, 1e-12)));
}

TEST(StatisticsTest, NothingToSayOfNothing) {
  const Statistics empty = Of<float>(DType::kFloat32, {});
  EXPECT_EQ(empty.count, 0u);
  EXPECT_EQ(empty.min, std::nullopt);
  const Statistics nans = Of<float>(DType::kFloat32, {kNanF});
  EXPECT_EQ(nans.nans, 1u);
  EXPECT_EQ(nans.max, std::nullopt);
  EXPECT_EQ(nans.mean, std::nullopt);
}

TEST(StatisticsTest, InfinitiesAreBoundsButNotFiniteOnes) {
  const Statistics both = Of<float>(DType::kFloat32, {kInfF, -kInfF, kNanF});
  EXPECT_EQ(both.min, -kInf);
  EXPECT_EQ(both.max, kInf);
  EXPECT_EQ(both.finite_min, std::nullopt);
  EXPECT_EQ(Of<float>(DType::kFloat32, {kInfF}).min, kInf);
  EXPECT_EQ(Of<float>(DType::kFloat32, {-kInfF}).max, -kInf);
  const Statistics negative = Of<float>(DType::kFloat32, {-kInfF, 2});
  EXPECT_EQ(negative.min_text, "-inf");
  EXPECT_EQ(negative.max_text, "2");
  EXPECT_EQ(negative.finite_min, 2.0);
}

TEST(StatisticsTest, LargeIntegersStayExactInText) {
  const Statistics s = Of<uint64_t>(DType::kUInt64, {~uint64_t{0}, ~uint64_t{0} - 1});
  EXPECT_EQ(s.max_text, "18446744073709551615");
  EXPECT_EQ(s.min_text, "18446744073709551614");
  const Statistics lowest = Of<int64_t>(DType::kInt64, {std::numeric_limits<int64_t>::min(), 5});
  EXPECT_EQ(lowest.min_text, "-9223372036854775808");
}

TEST(StatisticsTest, BoolsCountAsZeroAndOne) {
  const Statistics s = Of<uint8_t>(DType::kBool, {1, 0, 1, 1});
  EXPECT_EQ(s.zeros, 1u);
  EXPECT_THAT(s.mean, Optional(0.75));
  EXPECT_EQ(s.min_text, "False");
}

TEST(StatisticsTest, ComplexNumbersByMagnitude) {
  const Statistics s = Of<std::complex<float>>(DType::kComplex64, {{3, 4}, {0, 0}, {kNanF, 1}});
  EXPECT_EQ(s.count, 3u);
  EXPECT_EQ(s.nans, 1u);
  EXPECT_EQ(s.zeros, 1u);
  EXPECT_EQ(s.max, 5.0);
}

TEST(StatisticsTest, FourBitFloatsCountTwiceAByte) {
  const Statistics s = Of<uint8_t>(DType::kFloat4E2M1FNx2, {0xf7, 0x10});
  EXPECT_EQ(s.count, 4u);
  EXPECT_EQ(s.min, -6.0);
  EXPECT_EQ(s.max, 6.0);
  EXPECT_EQ(s.zeros, 1u);
}

TEST(StatisticsTest, SmallIntegersAreReadByTheByte) {
  EXPECT_EQ(Of<int8_t>(DType::kInt4, {-8, 7}).min, -8.0);
  EXPECT_EQ(Of<uint8_t>(DType::kUInt4, {15}).max, 15.0);
  EXPECT_EQ(Of<uint16_t>(DType::kBits16, {65535}).max, 65535.0);
}

// Mean and deviation of values with a large offset, for which a sum of squares is inaccurate.
TEST(StatisticsTest, LargeOffsetsDoNotDrownTheDeviation) {
  std::vector<double> elements;
  for (int i = 0; i < 100000; ++i) elements.push_back(1e9 + i % 2);
  const Statistics s = Of(DType::kFloat64, elements);
  EXPECT_THAT(s.mean, Optional(DoubleNear(1e9 + 0.5, 1e-6)));
  EXPECT_THAT(s.std_deviation, Optional(DoubleNear(0.5, 1e-9)));
}

TEST(StatisticsTest, PiecesGiveWhatTheWholeGives) {
  SeededRandom random;
  std::vector<float> elements(50000);
  for (float& element : elements) element = static_cast<float>(random.Between(0, 1000)) - 300;
  double sum = 0, squares = 0;
  for (const float element : elements) sum += element;
  const double mean = sum / 50000;
  for (const float element : elements) squares += (element - mean) * (element - mean);
  StatisticsAccumulator accumulator(DType::kFloat32);
  const auto bytes = std::as_bytes(std::span(elements));
  for (size_t at = 0; at < bytes.size();) {
    const size_t count = std::min<size_t>(random.Between(1, 9000) * 4, bytes.size() - at);
    accumulator.Add(bytes.subspan(at, count));
    at += count;
  }
  const Statistics s = accumulator.Finish();
  EXPECT_EQ(s.count, 50000u);
  EXPECT_THAT(s.mean, Optional(DoubleNear(mean, 1e-9)));
  EXPECT_THAT(s.std_deviation, Optional(DoubleNear(std::sqrt(squares / 50000), 1e-9)));
}

TEST(ElementTest, EveryKnownDTypeHasAReader) {
  for (const schema::DTypeInfo& info : schema::kDTypes) {
    const std::vector<std::byte> zero(schema::ElementBytes(info.dtype));
    EXPECT_NE(FormatElement(info.dtype, zero), "?") << info.name;
    StatisticsAccumulator accumulator(info.dtype);
    accumulator.Add(zero);
    EXPECT_GE(accumulator.Finish().count, 1u) << info.name;
  }
  EXPECT_EQ(FormatElement(DType::kUnknown, {}), "?");
}

// Extreme values that the specifications list.
TEST(ElementTest, SmallFloatsAtTheirEnds) {
  using namespace internal;
  EXPECT_EQ(Float8E4M3FNToFloat(0x7e), 448.0f);
  EXPECT_EQ(Float8E4M3FNToFloat(0x01), std::ldexp(1.0f, -9));
  EXPECT_TRUE(std::isnan(Float8E4M3FNToFloat(0xff)));
  EXPECT_EQ(Float8E4M3FNUZToFloat(0x7f), 240.0f);
  EXPECT_TRUE(std::isnan(Float8E4M3FNUZToFloat(0x80)));
  EXPECT_EQ(Float8E5M2ToFloat(0x7b), 57344.0f);
  EXPECT_TRUE(std::isinf(Float8E5M2ToFloat(0xfc)));
  EXPECT_TRUE(std::isnan(Float8E5M2ToFloat(0x7d)));
  EXPECT_EQ(Float8E5M2FNUZToFloat(0x7f), 57344.0f);
  EXPECT_EQ(Float8E5M2FNUZToFloat(0x01), std::ldexp(1.0f, -17));
  EXPECT_EQ(Float8E8M0FNUToFloat(127), 1.0f);
  EXPECT_EQ(Float8E8M0FNUToFloat(0), std::ldexp(1.0f, -127));
  EXPECT_TRUE(std::isnan(Float8E8M0FNUToFloat(255)));
  EXPECT_EQ(Float4E2M1FNToFloat(0x1), 0.5f);
  EXPECT_EQ(Float4E2M1FNToFloat(0xf), -6.0f);
  EXPECT_EQ(HalfToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(HalfToFloat(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(HalfToFloat(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(BFloat16ToFloat(0x3f80), 1.0f);
}

TEST(ElementTest, FormatsAsText) {
  const auto text = [](DType dtype, auto value) {
    return FormatElement(dtype, std::as_bytes(std::span(&value, 1)));
  };
  EXPECT_EQ(text(DType::kFloat32, 0.1f), "0.1");
  EXPECT_EQ(text(DType::kFloat64, 0.1), "0.1");
  EXPECT_EQ(text(DType::kInt8, int8_t{-5}), "-5");
  EXPECT_EQ(text(DType::kBool, uint8_t{1}), "True");
  EXPECT_EQ(text(DType::kComplex64, std::complex<float>(1, -2)), "(1-2j)");
  EXPECT_EQ(text(DType::kFloat4E2M1FNx2, uint8_t{0xf1}), "[0.5, -6]");
  EXPECT_EQ(text(DType::kBFloat16, uint16_t{0x7fc0}), "nan");
}

template <typename T>
Histogram HistogramOf(DType dtype, const std::vector<T>& elements, double low, double high,
                      size_t bins) {
  HistogramAccumulator accumulator(dtype, low, high, bins);
  accumulator.Add(std::as_bytes(std::span(elements)));
  return accumulator.histogram();
}

TEST(ElementHistogramTest, BinsOfFloatsHaveEqualWidthAndTheLastIncludesItsEnd) {
  const Histogram histogram = HistogramOf<float>(
      DType::kFloat32, {-1, -0.75f, -0.5f, 0.25f, 0.5f, 1, kNanF, kInfF, -kInfF}, -1, 1, 4);
  EXPECT_EQ(histogram.low, -1);
  EXPECT_EQ(histogram.width, 0.5);
  EXPECT_THAT(histogram.counts, ElementsAre(2, 1, 1, 2));
}

TEST(ElementHistogramTest, BinsOfIntegersHaveAWholeWidth) {
  const Histogram each = HistogramOf<int16_t>(DType::kInt16, {-2, -2, 0, 3}, -2, 3, 64);
  EXPECT_EQ(each.width, 1);
  EXPECT_THAT(each.counts, ElementsAre(2, 0, 1, 0, 0, 1));

  const Histogram wide = HistogramOf<uint8_t>(DType::kUInt8, {0, 3, 4, 255}, 0, 255, 64);
  EXPECT_EQ(wide.width, 4);
  ASSERT_EQ(wide.counts.size(), 64u);
  EXPECT_EQ(wide.counts[0], 2u);
  EXPECT_EQ(wide.counts[1], 1u);
  EXPECT_EQ(wide.counts[63], 1u);
}

TEST(ElementHistogramTest, OneValueIsOneBin) {
  const Histogram histogram = HistogramOf<double>(DType::kFloat64, {2.5, 2.5}, 2.5, 2.5, 64);
  EXPECT_EQ(histogram.low, 2.5);
  EXPECT_EQ(histogram.width, 0);
  EXPECT_THAT(histogram.counts, ElementsAre(2));
}

TEST(ElementHistogramTest, RangesAtTheLimitsOfDoubleDoNotOverflow) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const Histogram widest = HistogramOf<double>(
      DType::kFloat64, {-kMost, -kMost / 4, kMost / 4, kMost}, -kMost, kMost, 4);
  EXPECT_THAT(widest.counts, ElementsAre(1, 1, 1, 1));

  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  const Histogram closest = HistogramOf<double>(DType::kFloat64, {0, kLeast}, 0, kLeast, 64);
  EXPECT_EQ(std::accumulate(closest.counts.begin(), closest.counts.end(), uint64_t{0}), 2u);

  const Histogram integers = HistogramOf<uint64_t>(DType::kUInt64, {0, ~uint64_t{0}}, 0,
                                                   static_cast<double>(~uint64_t{0}), 64);
  ASSERT_EQ(integers.counts.size(), 64u);
  EXPECT_EQ(integers.counts.front(), 1u);
  EXPECT_EQ(integers.counts.back(), 1u);
}

TEST(ElementHistogramTest, ValuesBeyondTheRangeCountInTheOuterBins) {
  EXPECT_THAT(HistogramOf<float>(DType::kFloat32, {-5, 0, 1, 9}, 0, 1, 2).counts,
              ElementsAre(2, 2));
}

TEST(ElementHistogramTest, CountsWhatStatisticsCount) {
  // A complex number is its magnitude, and a byte of 4-bit floats is two values.
  EXPECT_THAT(
      HistogramOf<std::complex<float>>(DType::kComplex64, {{3, 4}, {0, 0}, {kInfF, kNanF}}, 0, 5, 2)
          .counts,
      ElementsAre(1, 1));
  EXPECT_THAT(HistogramOf<uint8_t>(DType::kFloat4E2M1FNx2, {0x72}, 0, 6, 2).counts,
              ElementsAre(1, 1));
  EXPECT_THAT(HistogramOf<uint8_t>(DType::kBool, {0, 1, 7}, 0, 1, 64).counts, ElementsAre(1, 2));
  EXPECT_THAT(HistogramOf<uint8_t>(DType::kUnknown, {1, 2}, 0, 2, 2).counts, Each(0));
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
