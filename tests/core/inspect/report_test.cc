#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "core/inspect/collect_report.h"
#include "core/inspect/compare.h"
#include "core/inspect/internal/bad_values.h"
#include "core/inspect/internal/examined_steps.h"
#include "core/inspect/internal/tensor_states.h"
#include "kv/read/snapshot.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::SeededRandom;
using internal::TensorChange;
using internal::TensorStates;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// A run whose tensors are float32 vectors by name.
class ReportTest : public StoreTest {
 protected:
  void SaveStep(uint64_t step, const SaveOptions& more = {}) {
    StateDict state;
    for (auto& [name, values] : tensors_) {
      state.root().Tensor(name, {.dtype = DType::kFloat32,
                                 .shape = {values.size()},
                                 .data = reinterpret_cast<std::byte*>(values.data())});
    }
    SaveOptions options = more;
    options.statistics = true;
    Save(step, state, options);
  }

  Report Collect(ReportOptions options = {}) {
    auto report = CollectReport(store->kv(), options);
    EXPECT_TRUE(testing::IsOk(report));
    return report.value_or(Report{});
  }

  static std::string PathOf(const Report& report, size_t module) {
    std::string path;
    for (; module != 0; module = report.modules[module].parent) {
      path = report.modules[module].name + (path.empty() ? "" : ".") + path;
    }
    return path;
  }
  static const ReportModule& ModuleAt(const Report& report, const std::string& path) {
    for (size_t i = 0; i < report.modules.size(); ++i) {
      if (PathOf(report, i) == path) return report.modules[i];
    }
    ADD_FAILURE() << "no module " << path;
    return report.modules.front();
  }

  std::map<std::string, std::vector<float>> tensors_;
};

std::map<std::string, uint64_t> ChangedBytes(const std::vector<TensorChange>& changes) {
  std::map<std::string, uint64_t> bytes;
  for (const TensorChange& change : changes) {
    if (change.kind == TensorChange::Kind::kRemoved) continue;
    bytes[change.tensor->first] = change.changed_bytes;
  }
  return bytes;
}

// Goal: what is read of tables that steps do not share is equivalent to reading each step.
TEST_F(ReportTest, StepsThatShareTablesAreTheSameAsStepsReadCompletely) {
  SeededRandom random;
  for (int i = 0; i < 300; ++i) tensors_[fmt::format("m{}.w{}", i % 7, i)] = {1, 2, 3};
  constexpr uint64_t kSteps = 40;
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (uint64_t change = random.Between(0, 3); change > 0; --change) {
      const auto index = static_cast<ptrdiff_t>(random.Between(0, tensors_.size() - 1));
      const auto at = std::next(tensors_.begin(), index);
      const uint64_t kind = random.Between(0, 3);
      if (kind == 0) {
        tensors_.erase(at);
      } else if (kind == 1) {
        tensors_[fmt::format("n{}.w{}", random.Between(0, 8), step)] = {4, 5};
      } else if (kind == 2) {
        at->second.push_back(7);
      } else {
        at->second[0] += 1;
      }
    }
    SaveStep(step);
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->kv().Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, snapshot->Steps());

  TensorStates states;
  for (uint64_t i = 0; i < kSteps; ++i) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto changes, states.MoveTo(*snapshot, steps[i]));

    TensorStates fresh;
    CAIRN_ASSERT_OK(fresh.MoveTo(*snapshot, steps[i]));
    ASSERT_EQ(states.tensors().size(), fresh.tensors().size());
    for (const auto& [fqn, b] : fresh.tensors()) {
      ASSERT_TRUE(states.tensors().contains(fqn)) << fqn;
      const auto& a = states.tensors().at(fqn);
      ASSERT_EQ(a.bytes, b.bytes);
      ASSERT_EQ(a.stored_bytes, b.stored_bytes);
      ASSERT_EQ(a.values->max, b.values->max);
      ASSERT_EQ(a.values->mean, b.values->mean);
    }
    if (i == 0) continue;
    CAIRN_ASSERT_OK_AND_ASSIGN(const Diff diff, CompareSteps(store->kv(), i - 1, i));
    std::map<std::string, uint64_t> expected;
    for (const KeyChange& change : diff.changes) {
      if (change.kind != KeyChange::Kind::kRemoved) expected[change.fqn] = change.changed_bytes;
    }
    ASSERT_EQ(ChangedBytes(changes), expected) << "step " << i;
  }
  EXPECT_LT(states.record_count(), kSteps * 300 / 4) << "tables that steps share were read again";
}

TEST_F(ReportTest, AnEmptyStoreHasNoModules) {
  const Report report = Collect();

  EXPECT_THAT(report.steps, IsEmpty());
  EXPECT_THAT(report.modules, IsEmpty());
  EXPECT_EQ(report.problem_count, 0);
}

TEST_F(ReportTest, NanIsFoundWhereItBegan) {
  for (int i = 0; i < 12; ++i) tensors_[fmt::format("layers.{}.w", i)] = std::vector<float>(50, 1);
  for (uint64_t step = 0; step < 30; ++step) {
    for (auto& [name, values] : tensors_) values[1] = static_cast<float>(step);
    if (step == 17) tensors_["layers.10.w"][3] = tensors_["layers.2.w"][4] = NAN;
    if (step == 18) tensors_["layers.0.w"][3] = NAN;
    SaveStep(step);
  }

  for (const uint64_t max_records : {0, 60}) {
    const Report report = Collect({.max_records = max_records});
    ASSERT_TRUE(report.nans);
    EXPECT_EQ(report.examined_steps, max_records == 0 ? 30 : 5);
    EXPECT_EQ(report.nans->step, 17);
    EXPECT_TRUE(report.nans->is_exact);
    EXPECT_THAT(report.nans->tensors, ElementsAre(Field(&BadTensor::fqn, "layers.2.w"),
                                                  Field(&BadTensor::fqn, "layers.10.w")));
    EXPECT_EQ(report.nans->tensors_at_end, 3);
    EXPECT_EQ(report.tensors.front().statistics->nans, 1);
    EXPECT_EQ(report.tensors.front().statistics->max, 29);
    EXPECT_FALSE(report.infs);
  }
}

TEST_F(ReportTest, InfinitiesOfTheFirstStepDoNotHideLaterOnes) {
  tensors_["mask"] = {0, -std::numeric_limits<float>::infinity()};
  tensors_["weight"] = {1, 2};
  SaveStep(1);
  EXPECT_TRUE(Collect().infs->is_first);

  tensors_["weight"][0] = std::numeric_limits<float>::infinity();
  SaveStep(2);

  const Report report = Collect();
  ASSERT_TRUE(report.infs);
  EXPECT_FALSE(report.infs->is_first);
  EXPECT_EQ(report.infs->step, 2);
  EXPECT_THAT(report.infs->tensors, ElementsAre(Field(&BadTensor::fqn, "weight")));
}

TEST_F(ReportTest, GrowthAndWhatFineTuningLeavesUnchangedAreFound) {
  for (int i = 0; i < 8; ++i) tensors_[fmt::format("model.layers.{}.w", i)] = {1, 2, 3, 4};
  for (int i = 0; i < 16; ++i) tensors_[fmt::format("optimizer.m.{}", i)] = {0, 0, 0, 0};
  for (uint64_t step = 0; step < 5; ++step) {
    for (auto& [name, values] : tensors_) values[0] += 1;
    SaveStep(step);
  }
  std::erase_if(tensors_, [](const auto& one) { return one.first.starts_with("optimizer"); });
  for (uint64_t step = 5; step < 9; ++step) {
    tensors_["model.layers.6.w"][0] += 1;
    tensors_["replay.buffer"].resize((step - 3) * 1000);
    SaveStep(step);
  }

  const Report report = Collect();

  ASSERT_TRUE(report.phase);
  EXPECT_TRUE(report.phase->has_base);
  EXPECT_EQ(report.phase->reference_step, 4);
  EXPECT_EQ(report.phase->first_step, 5);
  EXPECT_EQ(ModuleAt(report, "model.layers").unchanged_bytes, 7 * 16);
  EXPECT_EQ(ModuleAt(report, "model.layers.6.w").unchanged_bytes, 0);
  EXPECT_EQ(ModuleAt(report, "model.layers.6.w").last_changed_step, 8);
  EXPECT_EQ(ModuleAt(report, "model.layers.0.w").last_changed_step, 4);
  ASSERT_TRUE(report.growth);
  EXPECT_THAT(PathOf(report, report.growth->module), HasSubstr("replay"));
  EXPECT_EQ(report.growth->first_bytes, 8000);
  EXPECT_EQ(report.growth->last_bytes, 20000);
  EXPECT_THAT(ModuleAt(report, "model.layers.0.w").changed, ElementsAre(1, 1, 1, 1, 1, 0, 0, 0, 0));
}

TEST_F(ReportTest, AForkIsComparedWithItsBase) {
  for (int i = 0; i < 4; ++i) tensors_[fmt::format("w{}", i)] = {1, 2, 3, 4};
  SaveStep(10);
  const auto at_base = tensors_;
  for (auto& [name, values] : tensors_) values[0] = 9;
  SaveStep(20);
  tensors_ = at_base;
  tensors_["w1"][0] = 5;
  SaveOptions options;
  options.base_step = 10;
  SaveStep(30, options);

  const Report report = Collect();

  EXPECT_EQ(report.phase->reference_step, 10);
  EXPECT_THAT(ModuleAt(report, "w0").changed, ElementsAre(1, 1, 0));
  EXPECT_THAT(ModuleAt(report, "w1").changed, ElementsAre(1, 1, 1));
  EXPECT_EQ(report.modules[0].unchanged_bytes, 3 * 16);
}

TEST_F(ReportTest, DamageIsReportedAndTheRestIsShown) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(directory.path()) / "store";
  const auto tables = [&] {
    std::set<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder / "tables")) paths.insert(entry.path());
    return paths;
  };
  tensors_["a"] = {1, 2, 3};
  SaveStep(1);
  const std::set<fs::path> first = tables();
  tensors_["a"][0] += 1;
  SaveStep(2);
  std::set<fs::path> second = tables();
  std::erase_if(second, [&](const fs::path& path) { return first.contains(path); });
  tensors_["a"][0] += 1;
  SaveStep(3);
  const Report before = Collect();
  EXPECT_EQ(before.problem_count, 0);
  store.reset();
  for (const kv::SegmentSpace& space : before.space.segments) {
    if (space.segment.step == 1) fs::remove(folder / "segments" / space.segment.name);
  }
  ASSERT_THAT(second, SizeIs(1));
  fs::resize_file(*second.begin(), fs::file_size(*second.begin()) / 2);
  Reopen(kv::OpenMode::kRead);

  const Report report = Collect();

  EXPECT_EQ(report.examined_steps, 2);
  EXPECT_GE(report.problem_count, 2);
  EXPECT_THAT(report.problems,
              ::testing::Contains(
                  AllOf(Field(&Error::step, 2u), Field(&Error::file, HasSubstr("tables")))));
  EXPECT_EQ(ModuleAt(report, "a").logical_bytes, 12);
}

TEST(ExaminedStepsTest, TakesEndsTagsAndForksOfALongRun) {
  std::vector<kv::StepInfo> steps(1000);
  for (size_t i = 0; i < steps.size(); ++i) {
    steps[i].step = i * 10;
    steps[i].chunk_count = 1000;
    if (i > 0) steps[i].base_step = steps[i - 1].step;
  }
  steps[500].base_step = 1230;

  EXPECT_THAT(internal::ChooseSteps(steps, {}, 0), SizeIs(1000));
  EXPECT_THAT(internal::ChooseSteps(steps, {{"best", 7770}}, 3000),
              ElementsAre(0, 123, 499, 500, 777, 999));
  for (kv::StepInfo& step : steps) step.reused_chunk_count = 999;
  EXPECT_THAT(internal::ChooseSteps(steps, {}, 10'000), SizeIs(1000)) << "few records differ";
  EXPECT_THAT(internal::ChooseSteps({}, {}, 1), IsEmpty());
}

TEST(NaturalLessTest, ComparesDigitsAsNumbers) {
  std::vector<std::string> names = {"l.10.w", "l.2.w", "l.02.w", "l.2", "a", "l.w"};
  std::ranges::sort(names, internal::NaturalLess);
  EXPECT_THAT(names, ElementsAre("a", "l.2", "l.02.w", "l.2.w", "l.10.w", "l.w"));
}

}  // namespace
}  // namespace cairn::core
