// Goal: one store, used by many threads at once. Two threads save, overwrite and delete, one
// compacts, and 64 read, half of them through the store of the writer. A read returns one complete
// version of a step, never an older one than was acknowledged before the read began, or kNotFound
// because the step was deleted. Nothing else may fail. Under ThreadSanitizer there is no race.
//
// CAIRN_STRESS_SECONDS (4) is the duration of each test.

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint_store.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using ::testing::IsEmpty;
using testing::IsError;

constexpr int kReaders = 64;
constexpr uint64_t kSteps = 4;  // numbers 0 to 3
constexpr size_t kTensors = 5;
constexpr uint64_t kElements = 3'000;        // of each tensor but the first
constexpr uint64_t kLargeElements = 25'000;  // more than a page

double Seconds() {
  const char* const given = std::getenv("CAIRN_STRESS_SECONDS");
  return given != nullptr ? std::atof(given) : 4;
}

/// The tensors of one version of a step. Element i of tensor t is a function of (step, version, t,
/// i), so that a reader needs no other knowledge to check them. Most elements do not depend on the
/// version, so that steps share pages.
class Contents {
 public:
  Contents() {
    for (size_t t = 0; t < kTensors; ++t) {
      tensors_.emplace_back(t == 0 ? kLargeElements : kElements);
    }
  }

  void Fill(uint64_t step, uint64_t version) {
    for (size_t t = 0; t < kTensors; ++t) {
      for (uint64_t i = 0; i < tensors_[t].size(); ++i) {
        tensors_[t][i] = Element(step, version, t, i);
      }
    }
  }
  /// The version that all tensors contain; nothing if they are not one version of `step`.
  std::optional<uint64_t> VersionOf(uint64_t step) const {
    const uint64_t version = tensors_[0][0] >> 8;
    for (size_t t = 0; t < kTensors; ++t) {
      for (uint64_t i = 0; i < tensors_[t].size(); ++i) {
        if (tensors_[t][i] != Element(step, version, t, i)) return std::nullopt;
      }
    }
    return version;
  }

  StateDict State() const {
    StateDict state;
    for (size_t t = 0; t < kTensors; ++t) {
      state.root().Tensor(Name(t), {DType::kUInt64, {tensors_[t].size()}, {}, Bytes(t)});
    }
    return state;
  }
  std::vector<LoadRequest> Requests() {
    std::vector<LoadRequest> requests;
    for (size_t t = 0; t < kTensors; ++t) {
      const Shape shape{tensors_[t].size()};
      auto* const bytes = reinterpret_cast<std::byte*>(tensors_[t].data());
      requests.push_back(
          {.fqn = Name(t), .box = WholeBox(shape), .target = {DType::kUInt64, shape, {}, bytes}});
    }
    return requests;
  }

 private:
  static std::string Name(size_t tensor) { return "layers." + std::to_string(tensor) + ".w"; }
  static uint64_t Element(uint64_t step, uint64_t version, size_t tensor, uint64_t i) {
    return i % 1'000 == 0 ? version << 8 | step : tensor << 32 | i;
  }
  const std::byte* Bytes(size_t tensor) const {
    return reinterpret_cast<const std::byte*>(tensors_[tensor].data());
  }
  std::vector<std::vector<uint64_t>> tensors_;
};

class StressTest : public ::testing::TestWithParam<std::chrono::milliseconds> {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK_AND_ASSIGN(
        store_, CheckpointStore::Open(path_, kv::OpenMode::kWrite, {.grace = GetParam()}));
    CAIRN_ASSERT_OK_AND_ASSIGN(reader_, CheckpointStore::Open(path_, kv::OpenMode::kRead));
    for (uint64_t step = 0; step < kSteps; ++step) Save(step);
  }

  /// Saves the next version of a step.
  void Save(uint64_t step) {
    Contents contents;
    const uint64_t version = ++versions_;
    contents.Fill(step, version);
    SaveOptions options{.overwrite = true};
    if (version % 3 == 0) options.max_deltas = 2;
    if (version % 5 == 0) options.compress = true;
    if (version % 7 == 0) options.incremental = false;
    const auto saved = store_->Save(step, contents.State(), options);
    if (!saved && GetParam().count() == 0) {
      // A compaction has removed segments of its base.
      EXPECT_THAT(saved, IsError(ErrorCode::kConflict, "save again"));
      return;
    }
    ASSERT_TRUE(testing::IsOk(saved));
    acknowledged_[step] = version;
    ++saves_;
  }
  void SaveOrDelete(std::mt19937_64& random, uint64_t step) {
    if (random() % 10 < 7) return Save(step);
    const auto deleted = store_->Delete(std::array{step});
    if (!deleted) {
      EXPECT_THAT(deleted, IsError(ErrorCode::kNotFound, ""));
    }
    ++deletes_;
  }
  void Compact() {
    // Without a limit, the compaction would be most of the commits.
    CAIRN_EXPECT_OK(store_->Compact({.max_dead = 0.3}));
    ++compactions_;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

  void Read(const CheckpointStore& store, Contents& contents) {
    std::array<uint64_t, kSteps> least;
    for (uint64_t step = 0; step < kSteps; ++step) least[step] = acknowledged_[step];
    const auto steps = store.Steps();
    ASSERT_TRUE(testing::IsOk(steps));
    for (const kv::StepInfo& info : *steps) {
      const auto loaded = store.Load(info, contents.Requests());
      if (!loaded) {
        EXPECT_THAT(loaded, IsError(ErrorCode::kNotFound, ""));
        ++gone_;
        continue;
      }
      const auto version = contents.VersionOf(info.step);
      ASSERT_TRUE(version) << "step " << info.step << " is a mixture";
      EXPECT_GE(*version, least[info.step]) << "step " << info.step << " went back";
      ++loads_;
    }
  }
  void Verify(const CheckpointStore& store) {
    std::vector<std::string> damage;
    CAIRN_EXPECT_OK(store.Verify(
        std::nullopt, [&](const kv::Damage& one) { damage.push_back(one.error.ToString()); }));
    EXPECT_THAT(damage, IsEmpty());
  }

  void Start(std::function<void()> once) {
    threads_.emplace_back([this, once = std::move(once)] {
      while (!stop_ && !HasFailure()) once();
    });
  }
  void RunAndJoin() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(Seconds());
    const auto is_enough = [this] {
      return saves_ > kSteps + 1 && deletes_ > 1 && compactions_ > 1 && loads_ > 0;
    };
    while ((std::chrono::steady_clock::now() < end || !is_enough()) && !HasFailure()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  testing::SeededRandom random_;  // of the main thread
  testing::ScopedTempDir directory_{testing::FastDirectory()};
  const std::string path_ = directory_ / "store";
  std::unique_ptr<CheckpointStore> store_, reader_;
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> versions_ = 0;
  std::array<std::atomic<uint64_t>, kSteps> acknowledged_ = {};  // version by step
  std::atomic<uint64_t> saves_ = 0, deletes_ = 0, compactions_ = 0, loads_ = 0, gone_ = 0;
  std::vector<std::thread> threads_;
};

TEST_P(StressTest, ManyReadersBesideSavesDeletesAndCompactions) {
  for (const uint64_t first : {0, 2}) {  // each has two of the steps
    Start([this, first, random = std::make_shared<std::mt19937_64>(random_.Between(0, ~0u))] {
      SaveOrDelete(*random, first + (*random)() % 2);
    });
  }
  Start([this] { Compact(); });
  for (int i = 0; i < kReaders; ++i) {
    const bool through_writer = i % 2 == 0;
    const bool opens = i % 8 == 1;  // a new handle for each read
    Start([=, this, contents = std::make_shared<Contents>()] {
      if (opens) {
        const auto own = CheckpointStore::Open(path_, kv::OpenMode::kRead);
        ASSERT_TRUE(testing::IsOk(own));
        Read(**own, *contents);
      } else {
        Read(through_writer ? *store_ : *reader_, *contents);
      }
    });
  }
  Start([this] { Verify(*store_); });
  Start([this] { Verify(*reader_); });
  RunAndJoin();

  std::printf("%lu saves, %lu deletes, %lu compactions, %lu loads, %lu of a deleted step\n",
              saves_.load(), deletes_.load(), compactions_.load(), loads_.load(), gone_.load());
  Contents contents;
  Read(*reader_, contents);
  Verify(*reader_);
  CAIRN_EXPECT_OK(store_->Close());
}

INSTANTIATE_TEST_SUITE_P(GraceMs, StressTest,
                         ::testing::Values(std::chrono::milliseconds(0),
                                           std::chrono::milliseconds(60'000)),
                         [](const auto& info) { return std::to_string(info.param.count()); });

}  // namespace
}  // namespace cairn::core
