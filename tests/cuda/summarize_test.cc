// Statistics that are computed on the device are those of the host, for every dtype.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/tensor/element_statistics.h"
#include "cuda/backend.h"
#include "kv/digest.h"
#include "schema/dtype.h"
#include "tests/cuda/device_tensor.h"
#include "tests/support/result_matchers.h"

namespace cairn::cuda {
namespace {

using core::DType;
using core::ElementPage;
using core::ElementSummary;
using kv::kPageBytes;
using testing::DeviceBytes;
using testing::RandomBytes;

constexpr double kInf = std::numeric_limits<double>::infinity();

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& elements) {
  const auto bytes = std::as_bytes(std::span(elements));
  return {bytes.begin(), bytes.end()};
}

class SummarizeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CAIRN_SKIP_WITHOUT_GPU();
    auto backend = FindBackend();
    CAIRN_ASSERT_OK(backend);
    auto queue = (*backend)->OpenQueue(0);
    CAIRN_ASSERT_OK(queue);
    queue_ = *std::move(queue);
  }

  static bool IsComplex(DType dtype) {
    return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
  }
  static void ExpectNear(double found, double expected, double tolerance) {
    if (tolerance == 0 || !std::isfinite(expected)) {
      EXPECT_EQ(found, expected);
    } else {
      EXPECT_NEAR(found, expected, tolerance * std::fabs(expected));
    }
  }

  static void ExpectSame(const ElementSummary& found, DType dtype,
                         std::span<const std::byte> bytes) {
    core::StatisticsAccumulator accumulator(dtype);
    accumulator.Add(bytes);
    const core::Statistics expected = accumulator.Finish();
    EXPECT_EQ(found.finite, expected.count - expected.nans - expected.infs);
    EXPECT_EQ(found.zeros, expected.zeros);
    EXPECT_EQ(found.nans, expected.nans);
    EXPECT_EQ(found.infs, expected.infs);
    // A device may round magnitudes differently.
    const double tolerance = IsComplex(dtype) ? 1e-6 : 0;
    ExpectNear(found.min, expected.min.value_or(kInf), tolerance);
    ExpectNear(found.max, expected.max.value_or(-kInf), tolerance);
    EXPECT_EQ(found.finite > 0, expected.mean.has_value());
    if (!expected.mean || !std::isfinite(*expected.mean)) return;  // the host adds values up
    const double largest = std::max(std::fabs(found.min), std::fabs(found.max));
    EXPECT_NEAR(found.mean, *expected.mean,
                std::isfinite(largest) ? (tolerance + 1e-12) * largest : 1e300);
  }
  ElementSummary Summarize(DType dtype, const std::vector<std::byte>& bytes) {
    const DeviceBytes device(bytes);
    const auto found =
        queue_->Summarize({{ElementPage{.data = device.data(),
                                        .length_bytes = static_cast<uint32_t>(bytes.size()),
                                        .dtype = dtype}}});
    EXPECT_TRUE(testing::IsOk(found));
    return found ? found->front() : ElementSummary();
  }

  std::shared_ptr<core::DeviceQueue> queue_;
};

TEST_F(SummarizeTest, EqualsTheHostsForRandomBitsOfEveryType) {
  for (const schema::DTypeInfo& info : schema::kDTypes) {
    SCOPED_TRACE(info.name);
    const std::vector<std::byte> bytes = RandomBytes(20'000 / 16 * 16, 7);
    ExpectSame(Summarize(info.dtype, bytes), info.dtype, bytes);
  }
}

TEST_F(SummarizeTest, ReadsEveryNumberOfTheSmallTypes) {
  std::vector<uint16_t> all(1 << 15);
  for (const uint32_t first : {0u, 1u << 15}) {
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(first + i);
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kInt16, DType::kUInt16}) {
      SCOPED_TRACE(schema::DTypeName(dtype));
      // One by one, because a mean of all would hide a wrong one.
      ExpectSame(Summarize(dtype, BytesOf(all)), dtype, BytesOf(all));
    }
  }
  std::vector<std::byte> bytes(256);
  for (uint32_t i = 0; i < 256; ++i) bytes[i] = static_cast<std::byte>(i);
  const DeviceBytes device(bytes);
  for (const schema::DTypeInfo& info : schema::kDTypes) {
    if (info.storage_bits != 8) continue;
    SCOPED_TRACE(info.name);
    std::vector<ElementPage> pages;
    for (uint32_t i = 0; i < 256; ++i) {
      pages.push_back({.data = device.data() + i, .length_bytes = 1, .dtype = info.dtype});
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto found, queue_->Summarize(pages));
    for (uint32_t i = 0; i < 256; ++i) {
      ExpectSame(found[i], info.dtype, std::span(bytes).subspan(i, 1));
    }
  }
}

TEST_F(SummarizeTest, AcceptsEveryLengthAndAddress) {
  const std::vector<std::byte> bytes = RandomBytes(2 * kPageBytes, 5);
  const DeviceBytes device(bytes);
  for (const DType dtype : {DType::kFloat8E5M2, DType::kBFloat16, DType::kFloat32, DType::kInt64,
                            DType::kComplex128, DType::kFloat4E2M1FNx2}) {
    SCOPED_TRACE(schema::DTypeName(dtype));
    const uint64_t size = schema::ElementBytes(dtype);
    std::vector<ElementPage> pages;
    for (const uint64_t count : {uint64_t{1}, uint64_t{2}, uint64_t{7}, uint64_t{31}, uint64_t{33},
                                 uint64_t{513}, kPageBytes / size}) {
      for (const uint64_t at : {0, 1, 4, 8, 17}) {
        pages.push_back({.data = device.data() + at,
                         .length_bytes = static_cast<uint32_t>(count * size),
                         .dtype = dtype});
      }
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto found, queue_->Summarize(pages));
    ASSERT_EQ(found.size(), pages.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      ExpectSame(found[i], dtype,
                 std::span(bytes).subspan(static_cast<size_t>(pages[i].data - device.data()),
                                          pages[i].length_bytes));
    }
  }
}

TEST_F(SummarizeTest, TheMeanOfLargeNumbersIsFinite) {
  const double large = std::numeric_limits<double>::max();
  const std::vector<double> numbers(kPageBytes / sizeof(double), large);
  const ElementSummary found = Summarize(DType::kFloat64, BytesOf(numbers));
  EXPECT_EQ(found.mean, large);
  const std::vector<float> floats(kPageBytes / sizeof(float), std::numeric_limits<float>::max());
  EXPECT_EQ(Summarize(DType::kFloat32, BytesOf(floats)).mean, std::numeric_limits<float>::max());
}

TEST_F(SummarizeTest, TellsApartWhatIsNotANumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto summary = [&](const std::vector<float>& values) {
    return Summarize(DType::kFloat32, BytesOf(values)).ToStatistics();
  };
  EXPECT_TRUE(std::isnan(summary({kNan, kNan}).min));
  EXPECT_TRUE(std::isnan(summary({kNan, kNan}).mean));
  EXPECT_EQ(summary({kInfinity, 1, -0.0f}).max, kInf);
  EXPECT_EQ(summary({kInfinity, 1, -0.0f}).min, 0);
  EXPECT_EQ(summary({kInfinity, 1, -0.0f}).zeros, 1u);
  EXPECT_EQ(summary({kInfinity, 1, -0.0f}).mean, 0.5);
  EXPECT_TRUE(std::isnan(summary({-kInfinity}).mean));
  EXPECT_EQ(summary({-kInfinity}).infs, 1u);
  EXPECT_EQ(summary({1e-45f, 3e-45f}).min, 1.401298464324817e-45);
}

TEST_F(SummarizeTest, AcceptsAsManyPagesAsItSays) {
  const std::vector<std::byte> bytes = RandomBytes(core::DeviceQueue::kMaxSummarizedPages, 3);
  const DeviceBytes device(bytes);
  std::vector<ElementPage> pages;
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    pages.push_back({.data = device.data() + i, .length_bytes = 1, .dtype = DType::kUInt8});
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto found, queue_->Summarize(pages));
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(found[i].mean, static_cast<double>(bytes[i])) << i;
  }
}

}  // namespace
}  // namespace cairn::cuda
