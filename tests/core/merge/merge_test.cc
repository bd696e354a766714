// Weighted means of steps: their values, what costs no payload, and what is refused. Comparisons of
// the arithmetic with torch are in tests/python/test_derived_steps.py.

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/rewrite/internal/rewrite.h"
#include "core/rewrite/step_merge.h"
#include "kv/io/worker_pool.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/support/fake_s3.h"

namespace cairn::core {
namespace {

using ::testing::IsEmpty;
using testing::IsError;

TestTensor Floats(const std::vector<float>& values) {
  TestTensor tensor(DType::kFloat32, {values.size()});
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

/// Finite random numbers of 32 bits.
TestTensor RandomFloats(Shape shape, uint8_t seed) {
  TestTensor tensor(DType::kFloat32, std::move(shape), seed);
  for (size_t at = 3; at < tensor.bytes.size(); at += 4) tensor.bytes[at] &= std::byte{0xbf};
  return tensor;
}

float At(std::span<const std::byte> bytes, size_t i) {
  float value = 0;
  std::memcpy(&value, bytes.data() + 4 * i, 4);
  return value;
}

/// The mean with these weights in the order of the arrays. Each operation rounds.
std::vector<std::byte> MeanOf(const std::vector<std::vector<std::byte>>& arrays,
                              const std::vector<double>& weights) {
  std::vector<std::byte> mean(arrays[0].size());
  for (size_t i = 0; i < mean.size() / 4; ++i) {
    volatile float sum = static_cast<float>(weights[0]) * At(arrays[0], i);
    bool differs = false;
    for (size_t a = 1; a < arrays.size(); ++a) {
      const volatile float product = static_cast<float>(weights[a]) * At(arrays[a], i);
      sum = sum + product;
      differs |= std::memcmp(&arrays[a][4 * i], &arrays[0][4 * i], 4) != 0;
    }
    const float result = sum;
    std::memcpy(&mean[4 * i],
                differs ? reinterpret_cast<const std::byte*>(&result) : &arrays[0][4 * i], 4);
  }
  return mean;
}

class MergeTest : public StoreTest {
 protected:
  MergeReport Merge(const std::vector<uint64_t>& steps, uint64_t into,
                    const MergeOptions& options = {}) {
    auto report = store->Merge(steps, into, options);
    EXPECT_TRUE(testing::IsOk(report));
    return report.value_or(MergeReport{});
  }
  void SaveOne(uint64_t step, const TestTensor& tensor, const SaveOptions& options = {}) {
    Save(step, StateOf({{"w", tensor.view()}}), options);
  }
  std::vector<float> LoadFloats(uint64_t step, const std::string& fqn = "w") {
    const std::vector<std::byte> bytes = LoadBytes(step, fqn);
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

TEST_F(MergeTest, FloatsAreMeansAndTheRestIsThatOfTheLastStep) {
  const TestTensor a = Floats({1, 2, -0.5f}), b = Floats({3, 4, 0.25f});
  const TestTensor counts_a(DType::kInt32, {9}, 3), counts_b(DType::kInt32, {9}, 4);
  const auto state = [](const TestTensor& w, const TestTensor& counts, int64_t epoch) {
    StateDict made;
    made.root().Tensor("w", w.view());
    made.root().Map("model").Tensor("counts", counts.view());
    made.root().Value("epoch", epoch);
    return made;
  };
  Save(1, state(a, counts_a, 1));
  Save(2, state(b, counts_b, 2));
  const MergeReport report = Merge({1, 2}, 3);
  EXPECT_EQ(LoadFloats(3), (std::vector<float>{2, 3, -0.125f}));
  EXPECT_EQ(LoadBytes(3, "model.counts"), counts_b.bytes);
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents made, store->List(3));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents last, store->List(2));
  EXPECT_EQ(made.tree, last.tree);
  ASSERT_EQ(made.values.size(), 1u);
  EXPECT_EQ(made.values[0].value, Value(int64_t{2}));
  EXPECT_EQ(report.step.base_step, 2u);
  EXPECT_EQ(report.step.tensor_count, 2u);
  EXPECT_EQ(report.step.logical_bytes, last.step.logical_bytes);
  EXPECT_EQ(report.step.written_bytes, 12u);
  EXPECT_EQ(report.step.reused_chunk_count, 1u);
  EXPECT_TRUE(testing::IsOk(store->Delete(std::vector<uint64_t>{1, 2})));
  EXPECT_THAT(VerifyAll(), IsEmpty());
  EXPECT_EQ(LoadBytes(3, "model.counts"), counts_b.bytes);
}

TEST_F(MergeTest, WeightsAreDividedByTheirSum) {
  SaveOne(1, Floats({1, 10}));
  SaveOne(2, Floats({2, 20}));
  Merge({1, 2}, 3, {.weights = {3, 1}});
  EXPECT_EQ(LoadFloats(3), (std::vector<float>{1.25f, 12.5f}));
  Merge({2, 1}, 4, {.weights = {-1, 2}});
  EXPECT_EQ(LoadFloats(4), (std::vector<float>{0, 0}));
  const auto merge = [&](std::vector<double> weights) {
    return store->Merge(std::vector<uint64_t>{1, 2}, 9, {.weights = std::move(weights)});
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_THAT(merge({1}), IsError(ErrorCode::kInvalidArgument, "1 weights for 2 steps"));
  EXPECT_THAT(merge({0, 0}), IsError(ErrorCode::kInvalidArgument, "sum"));
  EXPECT_THAT(merge({1, -2}), IsError(ErrorCode::kInvalidArgument, "sum"));
  EXPECT_THAT(merge({1, kNan}), IsError(ErrorCode::kInvalidArgument, "sum"));
  EXPECT_THAT(merge({1, kInf}), IsError(ErrorCode::kInvalidArgument, "sum"));
  EXPECT_EQ(store->Steps()->size(), 4u);
}

// The blocks of merges are shorter than the parts of S3.
TEST_F(MergeTest, AStepInABucketIsMadeOfItsSteps) {
  const testing::FakeS3 server;
  store.reset();
  CAIRN_ASSERT_OK_AND_ASSIGN(
      store, CheckpointStore::Open(testing::OpenBucket(server), kv::OpenMode::kWrite));
  const TestTensor a = RandomFloats({2100, 2000}, 1), b = RandomFloats({2100, 2000}, 2);
  SaveOne(1, a);
  SaveOne(2, b);
  Merge({1, 2}, 3);
  EXPECT_TRUE(LoadBytes(3, "w") == MeanOf({a.bytes, b.bytes}, {0.5, 0.5}));
  EXPECT_THAT(VerifyAll(), IsEmpty());
  store.reset();  // before the server
}

TEST_F(MergeTest, StepsMayBeDividedDifferently) {
  // 9.6 MB, in chunks that are longer than what is computed at once, and in short ones.
  std::vector<std::vector<std::byte>> arrays;
  const uint64_t chunk_bytes[] = {100'000, 64 << 20, 9'000'000};
  for (uint64_t i = 0; i < 3; ++i) {
    const TestTensor tensor = RandomFloats({1200, 2000}, static_cast<uint8_t>(i + 1));
    SaveOne(i, tensor, {.incremental = false, .chunk_bytes = chunk_bytes[i]});
    arrays.push_back(tensor.bytes);
  }
  const std::vector<double> thirds(3, 1.0 / 3);
  Merge({0, 1, 2}, 10);
  EXPECT_EQ(LoadBytes(10, "w"), MeanOf(arrays, thirds));
  EXPECT_EQ(store->Chunks(Step(10), "w")->size(), store->Chunks(Step(2), "w")->size());
  Merge({2, 1, 0}, 11);
  EXPECT_EQ(LoadBytes(11, "w"), MeanOf({arrays[2], arrays[1], arrays[0]}, thirds));
  EXPECT_EQ(store->Chunks(Step(11), "w")->size(), store->Chunks(Step(0), "w")->size());
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(MergeTest, TheResultDoesNotDependOnTheNumberOfThreads) {
  const TestTensor a = RandomFloats({700'001}, 1), b = RandomFloats({700'001}, 2);
  SaveOne(1, a);
  SaveOne(2, b);
  const std::vector<uint64_t> steps = {1, 2};
  uint64_t into = 10;
  for (const size_t threads : {1, 2, 5}) {
    kv::WorkerPool pool(threads);
    CAIRN_ASSERT_OK(internal::RunMerge(store->kv(), steps, into, {}, pool));
    EXPECT_EQ(LoadBytes(into++, "w"), MeanOf({a.bytes, b.bytes}, {0.5, 0.5})) << threads;
  }
}

TEST_F(MergeTest, EqualBytesCostNoPayload) {
  const TestTensor same = RandomFloats({500, 1000}, 1), quantized(DType::kFloat8E4M3FN, {3000}, 2);
  TestTensor other = RandomFloats({500, 1000}, 3);
  const auto save = [&](uint64_t step, const SaveOptions& options) {
    Save(step,
         StateOf({{"frozen", same.view()}, {"quantized", quantized.view()}, {"w", other.view()}}),
         options);
  };
  save(1, {.chunk_bytes = 100'000});
  other.bytes[150'000] ^= std::byte{1};
  save(2, {.incremental = false, .chunk_bytes = 100'000});
  const MergeReport report = Merge({1, 2}, 3);
  EXPECT_EQ(report.step.written_bytes, 100'000u);  // the chunk that differs
  EXPECT_EQ(LoadBytes(3, "frozen"), same.bytes);
  EXPECT_EQ(LoadBytes(3, "quantized"), quantized.bytes);
  // An element that all steps have remains as it is, also if its neighbors differ.
  std::vector<std::byte> expected = LoadBytes(3, "w");
  EXPECT_EQ(std::memcmp(expected.data(), other.bytes.data(), 150'000), 0);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(MergeTest, SpecialValuesPassThroughTheArithmetic) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  SaveOne(1, Floats({kInf, kInf, kNan, -0.0f, 1, kInf}));
  SaveOne(2, Floats({1, -kInf, 1, -0.0f, -kNan, kInf}));
  Merge({1, 2}, 3);
  const std::vector<float> made = LoadFloats(3);
  EXPECT_EQ(made[0], kInf);
  EXPECT_TRUE(std::isnan(made[1]) && std::isnan(made[2]) && std::isnan(made[4]));
  EXPECT_FALSE(std::signbit(made[1]) || std::signbit(made[4]));
  EXPECT_TRUE(made[3] == 0 && std::signbit(made[3]));
  EXPECT_EQ(made[5], kInf);
}

TEST_F(MergeTest, SharedMemoryIsComputedOnceAndRemainsShared) {
  // `tied` is all of `w`; `low` and `high` overlap in storage that has no name.
  const auto tied = [](const TestTensor& tensor) {
    return StateOf({{"tied", tensor.view()}, {"w", tensor.view()}});
  };
  const TestTensor a = RandomFloats({300, 70}, 1), b = RandomFloats({300, 70}, 2);
  const TestTensor c = RandomFloats({5000}, 3), d = RandomFloats({5000}, 4);
  const auto with_halves = [&](StateDict state, const TestTensor& storage) {
    state.root().Tensor("low", {DType::kFloat32, {3000}, {}, storage.bytes.data()});
    state.root().Tensor("high", {DType::kFloat32, {3000}, {}, storage.bytes.data() + 8000});
    return state;
  };
  Save(1, with_halves(tied(a), c));
  Save(2, with_halves(tied(b), d));
  const MergeReport report = Merge({1, 2}, 3);
  EXPECT_EQ(report.step.written_bytes, a.bytes.size() + c.bytes.size());
  EXPECT_EQ(LoadBytes(3, "tied"), MeanOf({a.bytes, b.bytes}, {0.5, 0.5}));
  EXPECT_EQ(LoadBytes(3, "w"), LoadBytes(3, "tied"));
  const std::vector<std::byte> mean = MeanOf({c.bytes, d.bytes}, {0.5, 0.5});
  EXPECT_EQ(std::memcmp(LoadBytes(3, "low").data(), mean.data(), 12'000), 0);
  EXPECT_EQ(std::memcmp(LoadBytes(3, "high").data(), mean.data() + 8000, 12'000), 0);
  CAIRN_ASSERT_OK_AND_ASSIGN(const TensorInfo w, store->FindTensor(Step(3), "w"));
  EXPECT_EQ(w.alias_of, "tied");

  // The other way round they would get the mean of one of them only.
  const StateDict apart = StateOf({{"tied", a.view()}, {"w", b.view()}});
  Save(5, with_halves(apart, c), {.incremental = false});
  EXPECT_THAT(store->Merge(std::vector<uint64_t>{5, 2}, 6),
              IsError(ErrorCode::kInvalidArgument, "shares memory"));
  Merge({1, 5}, 7);
  EXPECT_EQ(LoadBytes(7, "w"), MeanOf({a.bytes, b.bytes}, {0.5, 0.5}));
  EXPECT_EQ(LoadBytes(7, "tied"), a.bytes);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(MergeTest, StepsWithDeltas) {
  std::vector<std::vector<std::byte>> arrays;
  TestTensor tensor = RandomFloats({100'000}, 1);
  for (uint64_t step = 1; step <= 3; ++step) {
    for (size_t at = step; at < tensor.bytes.size(); at += 4000) tensor.bytes[at] ^= std::byte{1};
    SaveOne(step, tensor, {.max_deltas = 4});
    arrays.push_back(tensor.bytes);
  }
  EXPECT_EQ(store->Chunks(Step(3), "w")->front().deltas.size(), 2u);
  Merge({1, 2, 3}, 4, {.weights = {1, 2, 1}});
  EXPECT_EQ(LoadBytes(4, "w"), MeanOf(arrays, {0.25, 0.5, 0.25}));
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(MergeTest, CompressedSteps) {
  // 8 MiB in one chunk, which is read part by part.
  TestTensor a(DType::kFloat32, {2 << 20}), b(DType::kFloat32, {2 << 20});
  for (size_t i = 0; i < 2 << 20; ++i) {
    const auto x = static_cast<float>(i % 1000), y = static_cast<float>(i % 777);
    std::memcpy(&a.bytes[4 * i], &x, 4);
    std::memcpy(&b.bytes[4 * i], &y, 4);
  }
  SaveOptions options{.incremental = false, .compress = true, .chunk_bytes = 8 << 20};
  SaveOne(1, a, options);
  SaveOne(2, b, options);
  ASSERT_EQ(store->Chunks(Step(2), "w")->size(), 1u);
  ASSERT_LT(Step(2).written_bytes, 4u << 20);
  Merge({1, 2}, 3);
  EXPECT_EQ(LoadBytes(3, "w"), MeanOf({a.bytes, b.bytes}, {0.5, 0.5}));
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(MergeTest, RefusesStepsThatDoNotMatch) {
  const auto save = [&](uint64_t step, const std::vector<std::string>& keys, DType dtype,
                        Shape shape) {
    const TestTensor tensor(dtype, std::move(shape), static_cast<uint8_t>(step));
    StateDict state;
    for (const std::string& key : keys) state.root().Tensor(key, tensor.view());
    Save(step, state, {.incremental = false});
  };
  save(1, {"a"}, DType::kFloat32, {8});
  save(2, {"a"}, DType::kFloat32, {4, 2});
  save(3, {"a"}, DType::kBFloat16, {8});
  save(4, {"a", "b", "c", "d", "e", "f", "g"}, DType::kFloat32, {8});
  save(5, {"a"}, DType::kFloat8E5M2, {8});
  save(6, {"a"}, DType::kFloat8E5M2, {8});
  StateDict value;
  value.root().Value("a", 0.5);
  Save(7, value);
  const auto merge = [&](const std::vector<uint64_t>& steps) { return store->Merge(steps, 9); };
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  EXPECT_THAT(merge({1}), IsError(kInvalid, "two steps"));
  EXPECT_THAT(merge({}), IsError(kInvalid, "two steps"));
  EXPECT_THAT(merge({1, 1}), IsError(kInvalid, "twice"));
  EXPECT_THAT(merge({1, 2}), IsError(kInvalid, "[8]"));
  EXPECT_THAT(merge({1, 3}), IsError(kInvalid, "bfloat16"));
  EXPECT_THAT(merge({1, 4}), IsError(kInvalid, "b, c, d, e, f and 1 more"));
  EXPECT_THAT(merge({4, 1}), IsError(kInvalid, "b, c, d, e, f and 1 more"));
  EXPECT_THAT(merge({1, 7}), IsError(kInvalid, "lacks"));
  EXPECT_THAT(merge({5, 6}), IsError(kInvalid, "float8_e5m2"));
  EXPECT_THAT(merge({1, 8}), IsError(ErrorCode::kNotFound, "8"));
  EXPECT_THAT(store->Merge(std::vector<uint64_t>{1, 2}, 4), IsError(ErrorCode::kConflict, "4"));
  EXPECT_EQ(store->Steps()->size(), 7u);
}

TEST_F(MergeTest, ReplacesASourceIfAllowed) {
  SaveOne(1, Floats({1}));
  SaveOne(2, Floats({2}));
  Merge({1, 2}, 2, {.overwrite = true});
  EXPECT_EQ(LoadFloats(2), (std::vector<float>{1.5f}));
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(MergeTest, CanBeCancelled) {
  SaveOne(1, RandomFloats({3'000'000}, 1));
  SaveOne(2, RandomFloats({3'000'000}, 2));
  uint64_t reported = 0;
  const auto progress = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 24'000'000u);
    reported = done;
    return false;
  };
  EXPECT_THAT(store->Merge(std::vector<uint64_t>{1, 2}, 3, {.progress = progress}),
              IsError(ErrorCode::kCancelled, ""));
  EXPECT_GT(reported, 0u);
  EXPECT_EQ(store->Steps()->size(), 2u);
  Merge({1, 2}, 3);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(MergeTest, DamageOfOneStepIsReportedAndNoStepIsMade) {
  SaveOne(1, RandomFloats({400'000}, 1), {.incremental = false});
  SaveOne(2, RandomFloats({400'000}, 2), {.incremental = false});
  FlipByte(FileOf(OnlyChunk(1).extents.front()), 1'000'000);
  EXPECT_THAT(store->Merge(std::vector<uint64_t>{1, 2}, 3), IsError(ErrorCode::kDataLoss, "w"));
  EXPECT_EQ(store->Steps()->size(), 2u);
  SaveOne(4, RandomFloats({10}, 5));
}

}  // namespace
}  // namespace cairn::core
