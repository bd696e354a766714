// Statistics of chunks: against those that a slow, simple pass computes, and in saved steps.

#include "core/save/internal/chunk_statistics.h"

#include <hwy/targets.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "core/async_save.h"
#include "core/inspect/stored_statistics.h"
#include "core/save/save_options.h"
#include "core/tensor/element_statistics.h"
#include "core/upkeep/add_statistics.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/support/scoped_vector_target.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::SeededRandom;
using internal::ChunkStatisticsAccumulator;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

kv::ChunkStatistics Of(DType dtype, std::span<const std::byte> bytes) {
  ChunkStatisticsAccumulator accumulator(dtype);
  accumulator.Add(bytes, bytes.data());
  return accumulator.Finish();
}

bool IsSame(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

/// The error of a mean is relative to the largest of the values.
void ExpectSame(DType dtype, const kv::ChunkStatistics& fast, std::span<const std::byte> bytes) {
  StatisticsAccumulator accumulator(dtype);
  accumulator.Add(bytes);
  const Statistics slow = accumulator.Finish();
  EXPECT_EQ(fast.zeros, slow.zeros);
  EXPECT_EQ(fast.nans, slow.nans);
  EXPECT_EQ(fast.infs, slow.infs);
  EXPECT_TRUE(IsSame(fast.min, slow.min.value_or(kNan))) << fast.min;
  EXPECT_TRUE(IsSame(fast.max, slow.max.value_or(kNan))) << fast.max;
  const double mean = slow.mean.value_or(kNan);
  const double magnitude = std::max(std::fabs(fast.min), std::fabs(fast.max));
  if (magnitude > 1e300) return;  // the slow pass adds such values up
  if (std::isfinite(magnitude)) {
    EXPECT_LE(std::fabs(fast.mean - mean), 1e-5 * magnitude);
  } else {
    EXPECT_EQ(std::isnan(fast.mean), std::isnan(mean));
  }
}

/// Random bits, of which some are zeros; all finite unless `any` is true.
std::vector<std::byte> RandomElements(SeededRandom& random, DType dtype, size_t count, bool any) {
  std::vector<std::byte> bytes(count * schema::ElementBytes(dtype));
  random.Fill(bytes);
  if (any) return bytes;
  // The highest byte of a little-endian float: without the largest exponents.
  const size_t step = schema::ElementBytes(dtype);
  for (size_t at = step - 1; at < bytes.size(); at += step) bytes[at] &= std::byte{0xb7};
  return bytes;
}

TEST(ChunkStatisticsTest, AreThoseOfTheSlowPassWithEverySetOfInstructions) {
  constexpr DType kDTypes[] = {DType::kBFloat16, DType::kFloat16,      DType::kFloat32,
                               DType::kFloat64,  DType::kFloat8E4M3FN, DType::kInt64,
                               DType::kBool,     DType::kComplex64};
  SeededRandom random;
  for (const int64_t target : testing::VectorTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const testing::ScopedVectorTarget scope(target);
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(schema::DTypeName(dtype));
      for (const size_t count : {1, 31, 64, 1000, 4096, 20'001}) {
        for (const bool any : {false, true}) {
          auto bytes = RandomElements(random, dtype, count, any);
          if (dtype == DType::kBool) {
            for (std::byte& byte : bytes) byte &= std::byte{1};
          }
          if (count > 100) std::fill_n(bytes.begin(), 64, std::byte{0});
          ExpectSame(dtype, Of(dtype, bytes), bytes);
        }
      }
    }
  }
}

TEST(ChunkStatisticsTest, HaveTheSameBitsWithEverySetOfInstructions) {
  SeededRandom random;
  for (const DType dtype : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    SCOPED_TRACE(schema::DTypeName(dtype));
    for (const size_t count : {16, 31, 1000, 20'001}) {
      const auto bytes = RandomElements(random, dtype, count, false);
      std::optional<kv::ChunkStatistics> expected;
      for (const int64_t target : testing::VectorTargets()) {
        const testing::ScopedVectorTarget scope(target);
        const kv::ChunkStatistics found = Of(dtype, bytes);
        if (!expected) expected = found;
        EXPECT_EQ(std::bit_cast<uint64_t>(found.mean), std::bit_cast<uint64_t>(expected->mean))
            << hwy::TargetName(target);
      }
    }
  }
}

// The expected bits are those of x86-64 and of aarch64.
TEST(ChunkStatisticsTest, HaveTheSameBitsOnEveryProcessor) {
  std::vector<float> values;
  uint32_t state = 1;
  for (int i = 0; i < 3000; ++i) {
    state = state * 1'664'525 + 1'013'904'223;
    values.push_back(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31F / 3);
  }
  const auto statistics = Of(DType::kFloat32, std::as_bytes(std::span(values)));
  EXPECT_EQ(statistics.mean, -0x1.3cf56846ff513p-11);
  std::vector<double> doubles(values.begin(), values.end());
  for (double& value : doubles) value /= 7;
  const auto of_doubles = Of(DType::kFloat64, std::as_bytes(std::span(doubles)));
  EXPECT_EQ(of_doubles.mean, -0x1.6a3d08a4af26cp-14);
}

TEST(ChunkStatisticsTest, ZeroIsNeverNegative) {
  for (const float first : {0.0F, -0.0F}) {
    for (const size_t count : {1, 100}) {
      std::vector<float> values(count, -first);
      values[0] = first;
      const auto statistics = Of(DType::kFloat32, std::as_bytes(std::span(values)));
      EXPECT_FALSE(std::signbit(statistics.min));
      EXPECT_FALSE(std::signbit(statistics.max));
    }
  }
}

TEST(ChunkStatisticsTest, FindOneValueThatIsNotFinite) {
  for (const float odd :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(50'000, 2);
    values[40'000] = odd;
    const auto statistics = Of(DType::kFloat32, std::as_bytes(std::span(values)));
    EXPECT_EQ(statistics.nans, std::isnan(odd) ? 1u : 0u);
    EXPECT_EQ(statistics.infs, std::isinf(odd) ? 1u : 0u);
    EXPECT_EQ(statistics.max, odd == std::numeric_limits<float>::infinity() ? kInf : 2);
    EXPECT_EQ(statistics.mean, 2);
  }
}

TEST(ChunkStatisticsTest, LargeValuesHaveAMean) {
  const std::vector<float> values(10'000, std::numeric_limits<float>::max());
  const auto statistics = Of(DType::kFloat32, std::as_bytes(std::span(values)));
  EXPECT_DOUBLE_EQ(statistics.mean, std::numeric_limits<float>::max());
}

class SavedStatisticsTest : public StoreTest {
 protected:
  static constexpr size_t kElements = 100'000;

  SavedStatisticsTest() : values_(kElements, 1.0f) {
    state_.root().Tensor("w", {DType::kFloat32, {kElements}, {}, Bytes()});
  }
  std::byte* Bytes() { return reinterpret_cast<std::byte*>(values_.data()); }
  std::optional<StoredStatistics> Find(uint64_t step) {
    auto tensor = store->FindTensor(Step(step), "w");
    EXPECT_TRUE(tensor);
    auto found = FindStatistics(store->kv(), Step(step), {&*tensor, 1});
    EXPECT_TRUE(found);
    return found ? found->front() : std::nullopt;
  }

  std::vector<float> values_;
  StateDict state_;
};

TEST_F(SavedStatisticsTest, AreRecordedPerChunkIfRequested) {
  values_[50'000] = -4;
  values_[0] = std::numeric_limits<float>::quiet_NaN();
  Save(1, state_, {.chunk_bytes = 100'000});
  EXPECT_EQ(Find(1), std::nullopt);
  EXPECT_FALSE(Chunks(1)[0].statistics);
  // The same bytes, so that nothing is written except records.
  const SaveReport report = Save(2, state_, {.statistics = true, .chunk_bytes = 100'000});
  EXPECT_EQ(report.chunks_reused, 4u);
  EXPECT_EQ(Chunks(2)[0].statistics->nans, 1u);
  EXPECT_EQ(Chunks(2)[2].statistics->min, -4);
  EXPECT_EQ(Chunks(2)[3].statistics->min, 1);
  const auto found = Find(2);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->count, kElements);
  EXPECT_EQ(found->nans, 1u);
  EXPECT_EQ(found->min, -4);
  EXPECT_EQ(found->abs_max(), 4);
  EXPECT_NEAR(found->mean, 1 - 5.0 / (kElements - 1), 1e-9);
}

TEST_F(SavedStatisticsTest, OfUnchangedChunksRemainAndOthersAreNew) {
  const SaveOptions options{.statistics = true, .chunk_bytes = 100'000};
  Save(1, state_, options);
  values_[99'999] = 7;
  Save(2, state_, options);
  EXPECT_EQ(Find(2)->max, 7);
  EXPECT_EQ(Find(1)->max, 1);
  // A save without statistics keeps those of the bytes that it does not write.
  values_[99'999] = 8;
  Save(3, state_, {.chunk_bytes = 100'000});
  EXPECT_TRUE(Chunks(3)[0].statistics);
  EXPECT_FALSE(Chunks(3)[3].statistics);
  EXPECT_EQ(Find(3), std::nullopt);
}

TEST_F(SavedStatisticsTest, OfTheSameBytesAsAnotherDTypeAreOthers) {
  const SaveOptions options{.statistics = true, .chunk_bytes = 100'000};
  Save(1, state_, options);
  const auto int_state = [&] {
    StateDict state;
    state.root().Tensor("w", {DType::kInt32, {kElements}, {}, Bytes()});
    return state;
  }();
  EXPECT_EQ(Save(2, int_state, options).chunks_reused, 4u);
  EXPECT_EQ(Find(2)->max, 0x3f800000);
  EXPECT_EQ(Save(3, state_, {.chunk_bytes = 100'000}).chunks_reused, 4u);
  EXPECT_EQ(Find(3), std::nullopt);
}

TEST_F(SavedStatisticsTest, CanBeAddedLaterStepByStep) {
  for (uint64_t step = 1; step <= 3; ++step) {
    values_[0] = static_cast<float>(step) + 1;
    Save(step, state_);
  }
  const std::array<uint64_t, 3> steps{1, 2, 3};
  int calls = 0;
  EXPECT_THAT(AddStatistics(*store, steps, [&](uint64_t, uint64_t) { return ++calls < 3; }),
              testing::IsError(ErrorCode::kCancelled, "what was committed remains"));
  Reopen();
  EXPECT_EQ(Find(2)->max, 3);
  EXPECT_EQ(Find(3), std::nullopt);
  CAIRN_ASSERT_OK_AND_ASSIGN(const AddStatisticsReport rest, AddStatistics(*store, steps));
  EXPECT_EQ(rest.steps, 1u);
  EXPECT_EQ(rest.bytes, 4 * kElements);
  EXPECT_EQ(Find(3)->max, 4);
}

TEST_F(SavedStatisticsTest, AreThoseOfPagesAndDeltasToo) {
  for (size_t i = 0; i < kElements; ++i) values_[i] = static_cast<float>(i);
  const SaveOptions options{.max_deltas = 4, .statistics = true};
  Save(1, state_, options);
  for (size_t i = 0; i < kElements; i += 100) values_[i] += 0.5f;
  values_[300] = -1;
  Save(2, state_, options);
  EXPECT_FALSE(Chunks(2)[0].deltas.empty());
  EXPECT_EQ(Find(2)->min, -1);
  values_[10] = -5;
  Save(3, state_, {.max_deltas = 0, .statistics = true});
  EXPECT_EQ(Find(3)->min, -5);
}

TEST_F(SavedStatisticsTest, AreThoseOfTheStateThatWasStaged) {
  AsyncSaver saver(store.get());
  for (uint64_t step = 1; step <= 3; ++step) {
    values_[7] = static_cast<float>(step) + 10;
    CAIRN_ASSERT_OK_AND_ASSIGN(auto handle,
                               saver.Save(step, state_, {.max_deltas = 4, .statistics = true}));
    handle.WaitStaged();
    values_[7] = 1000;
    CAIRN_ASSERT_OK(handle.Wait());
    EXPECT_EQ(Find(step)->max, static_cast<double>(step) + 10);
  }
}

}  // namespace
}  // namespace cairn::core
