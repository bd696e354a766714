// Months of use in minutes: thousands of saves with random changes, edits, merges, deletes, prunes,
// compactions and reopenings, in a directory and in a storage whose calls fail at random. A model
// in memory has what every step must contain, and the store is compared with it bit for bit.
//
// CAIRN_HISTORY_SAVES sets the number of saves.

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "core/rewrite/step_edit.h"
#include "core/rewrite/step_merge.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/open/open_storage.h"
#include "tests/core/history/model_state.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::core {
namespace {

using kv::internal::FaultyStorage;
using kv::internal::MemoryStorage;
using kv::internal::StorageCall;
using kv::internal::StorageFault;
using kv::internal::StorageOperation;
using ::testing::IsEmpty;

constexpr size_t kMostSteps = 40;
constexpr double kFaultRate = 0.004;  // of the calls of a storage

uint64_t SaveCount() {
  const char* const given = std::getenv("CAIRN_HISTORY_SAVES");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 250;
}

/// A store, the model, and the changes of both.
class History {
 public:
  /// Without `faulty`, nothing fails.
  History(std::shared_ptr<kv::Storage> storage, FaultyStorage* faulty)
      : storage_(std::move(storage)), faulty_(faulty), state_(random_) {
    Open();
  }

  /// Saves `count` steps, with other changes between them.
  void Run(uint64_t count) {
    for (uint64_t saves = 0; saves < count && !::testing::Test::HasFatalFailure();) {
      const uint64_t dice = random_.Between(0, 999);
      if (dice < 850) {
        Save();
        ++saves;
      } else if (dice < 920) {
        DeleteSome();
      } else if (dice < 950) {
        Reopen();
      } else if (dice < 960) {
        Compact();
      } else if (dice < 967) {
        Edit();
      } else if (dice < 975) {
        Merge();
      } else if (dice < 982) {
        ReturnToOlderStep();
      } else {
        CheckOne();
      }
      if (model_.size() > kMostSteps) Prune();
      if (saves % 500 == 499) CheckAll();
    }
    Reopen();
    CheckAll();
  }

  void CheckAll() {
    SetFaults(false);
    const auto steps = store_->Steps();
    ASSERT_TRUE(testing::IsOk(steps));
    std::vector<uint64_t> numbers, expected;
    for (const kv::StepInfo& info : *steps) numbers.push_back(info.step);
    for (const auto& [step, contents] : model_) expected.push_back(step);
    ASSERT_EQ(numbers, expected);
    for (const kv::StepInfo& info : *steps) ExpectStep(info);
    std::vector<std::string> damage;
    CAIRN_EXPECT_OK(store_->Verify(
        std::nullopt, [&](const kv::Damage& one) { damage.push_back(one.error.ToString()); }));
    EXPECT_THAT(damage, IsEmpty());
    SetFaults(true);
  }

  /// Without faults from now on: the store takes little more than what its steps use.
  void ExpectCompact() {
    SetFaults(false);
    faulty_ = nullptr;
    CAIRN_ASSERT_OK(store_->Compact({}));
    Reopen();
    CheckAll();
    CAIRN_ASSERT_OK_AND_ASSIGN(const kv::CompactReport report, store_->Compact({.dry_run = true}));
    uint64_t bytes = 0;
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto names, storage_->List(""));
    for (const std::string& name : names) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t size, storage_->Size(name));
      bytes += size;
    }
    EXPECT_LE(static_cast<double>(bytes), 1.2 * static_cast<double>(report.live_bytes));
    std::printf("%.3f of the bytes that steps use\n",
                static_cast<double>(bytes) / static_cast<double>(report.live_bytes));
  }

  void Close() {
    saver_.reset();
    CAIRN_EXPECT_OK(store_->Close());
    store_.reset();
  }
  void Print(const char* name) const {
    std::printf("%s:", name);
    for (const auto& [what, count] : counts_) {
      std::printf(" %s %llu", what.c_str(), static_cast<unsigned long long>(count));
    }
    std::printf("\n");
  }

 private:
  void SetFaults(bool are_on) {
    if (faulty_ == nullptr) return;
    if (!are_on) return faulty_->SetPlan({});
    faulty_->SetPlan([this](const StorageCall& call) {
      if (!fault_random_.Chance(kFaultRate)) return StorageFault::kNone;
      constexpr StorageFault kFaults[] = {StorageFault::kRefuse, StorageFault::kLoseResponse,
                                          StorageFault::kLoseWrite, StorageFault::kTear};
      const StorageFault fault = kFaults[fault_random_.Between(0, 3)];
      // A storage that loses the removal of a lease or an object is not noticed by anyone.
      if (call.operation == StorageOperation::kRemove) return StorageFault::kRefuse;
      return kv::internal::CanHappen(fault, call.operation) ? fault : StorageFault::kRefuse;
    });
  }

  /// Opens the store, without faults: what fails then is not about histories.
  void Open() {
    SetFaults(false);
    saver_.reset();
    store_.reset();
    kv::StoreOptions options{.grace = std::chrono::milliseconds(0), .take_over = true};
    auto store = CheckpointStore::Open(storage_, kv::OpenMode::kWrite, options);
    ASSERT_TRUE(testing::IsOk(store));
    store_ = *std::move(store);
    saver_ = std::make_unique<AsyncSaver>(store_.get());
    SetFaults(true);
  }
  void Reopen() {
    saver_.reset();
    if (random_.Chance(0.7)) (void)store_->Close();
    Open();
    ++counts_["reopened"];
  }

  /// Opens the store after an error. Returns the steps that it has.
  std::vector<kv::StepInfo> OpenAfterError() {
    ++counts_["failed"];
    Open();
    SetFaults(false);
    auto steps = store_->Steps();
    EXPECT_TRUE(testing::IsOk(steps));
    return steps.value_or(std::vector<kv::StepInfo>());
  }

  /// After an error: finds out whether the step exists now as `saved`.
  void Recover(uint64_t step, const ModelStep& saved) {
    const std::vector<kv::StepInfo> steps = OpenAfterError();
    const auto found = std::ranges::find(steps, step, &kv::StepInfo::step);
    const bool was_there = model_.contains(step);
    if (found == steps.end()) {
      EXPECT_FALSE(was_there) << "a failed save has removed step " << step;
      return;
    }
    if (was_there && Matches(*found, model_.at(step))) return;
    model_[step] = saved;
    ExpectStep(*found);
  }

  void Save() {
    state_.Change();
    SaveOptions options{.chunk_bytes = 2 * kv::kPageBytes};
    constexpr uint32_t kDeltas[] = {0, 4, 4, 64};
    options.max_deltas = kDeltas[random_.Between(0, 3)];
    options.incremental = !random_.Chance(0.02);
    options.compress = random_.Chance(0.2);
    options.share_equal = random_.Chance(0.3);
    uint64_t step = next_step_++;
    if (!model_.empty() && random_.Chance(0.03)) {
      step = AnyStep();
      options.overwrite = true;
    }
    const ModelStep saved = state_.tensors();
    const StateDict view = state_.View();
    Result<void> result;
    if (random_.Chance(0.5)) {
      auto handle = saver_->Save(step, view, options);
      auto report = handle ? handle->Wait() : std::unexpected(handle.error());
      if (!report) result = std::unexpected(report.error());
    } else {
      auto report = store_->Save(step, view, options);
      if (!report) result = std::unexpected(report.error());
    }
    ++counts_["saved"];
    if (result) {
      model_[step] = saved;
    } else {
      ASSERT_TRUE(faulty_ != nullptr) << result.error().ToString();
      Recover(step, saved);
      SetFaults(true);
    }
  }

  void Delete(const std::vector<uint64_t>& steps) {
    if (steps.empty()) return;
    const auto result = store_->Delete(steps);
    ++counts_["deleted"];
    if (result) {
      for (const uint64_t step : steps) model_.erase(step);
      return;
    }
    ASSERT_TRUE(faulty_ != nullptr) << result.error().ToString();
    const std::vector<kv::StepInfo> infos = OpenAfterError();
    SetFaults(true);
    size_t left = 0;
    for (const uint64_t step : steps) {
      left += static_cast<size_t>(std::ranges::count(infos, step, &kv::StepInfo::step));
    }
    EXPECT_TRUE(left == 0 || left == steps.size()) << "a delete was performed in part";
    if (left > 0) return;
    for (const uint64_t step : steps) model_.erase(step);
  }
  void DeleteSome() {
    std::set<uint64_t> doomed;
    for (uint64_t count = random_.Between(1, 3); count > 0 && model_.size() > 3; --count) {
      doomed.insert(AnyStep());
    }
    Delete({doomed.begin(), doomed.end()});
  }
  /// Keeps the newest steps, and some others.
  void Prune() {
    const size_t last = random_.Between(2, kMostSteps / 2);
    const uint64_t every = random_.Between(2, 9);
    std::vector<uint64_t> doomed;
    size_t place = model_.size();
    for (const auto& [step, contents] : model_) {
      if (place-- > last && step % every != 0) doomed.push_back(step);
    }
    Delete(doomed);
  }

  void Compact() {
    kv::CompactOptions options;
    constexpr double kMaxDead[] = {0, 0.15, 0.15, 0.5};
    options.max_dead = kMaxDead[random_.Between(0, 3)];
    options.fold_all = random_.Chance(0.3);
    if (random_.Chance(0.3)) options.commit_bytes = 100'000;
    const auto report = store_->Compact(options, random_.Chance(0.3));
    ++counts_["compacted"];
    if (report) {
      counts_["compressed"] += report->compressed_chunks;
      counts_["folded"] += report->folded_chunks;
      counts_["moved MiB"] += report->moved_bytes >> 20;
      return;
    }
    ASSERT_TRUE(faulty_ != nullptr) << report.error().ToString();
    OpenAfterError();
    SetFaults(true);
  }

  /// Makes a step of the records of others: a fork, or one with keys dropped, renamed or grafted.
  void Edit() {
    if (model_.size() < 2) return;
    const uint64_t source = AnyStep(), other = AnyStep(), into = next_step_++;
    ModelStep expected = model_.at(source);
    StepEdit edit;
    const uint64_t kind = random_.Between(0, 3);
    if (kind == 1 && expected.size() > 1 && expected.erase("frozen") > 0) {
      edit.drop = {"frozen"};
    } else if (kind == 2 && expected.contains("embedding")) {
      auto node = expected.extract("embedding");
      node.key() = "embedding" + std::to_string(into);
      edit.rename = {{"embedding", node.key()}};
      expected.insert(std::move(node));
    } else if (kind == 3 && model_.at(other).contains("weights")) {
      edit.graft = Graft{.step = other, .patterns = {"weights"}, .under = {}};
      expected["weights"] = model_.at(other).at("weights");
    }
    const auto edited = store_->Edit(source, into, edit);
    ++counts_["edited"];
    if (edited) {
      model_[into] = expected;
      return;
    }
    ASSERT_TRUE(faulty_ != nullptr) << edited.error().ToString();
    Recover(into, expected);
    SetFaults(true);
  }

  /// Makes a step of the means of others that have the same keys.
  void Merge() {
    if (model_.empty()) return;
    const uint64_t last = AnyStep(), into = next_step_++;
    std::vector<uint64_t> steps;
    std::vector<ModelStep> contents;
    for (const auto& [step, tensors] : model_) {
      if (step == last || steps.size() == 3 || !random_.Chance(0.3)) continue;
      if (!CanBeMerged(tensors, model_.at(last))) continue;
      steps.push_back(step);
      contents.push_back(tensors);
    }
    if (steps.empty()) return;
    steps.push_back(last);
    contents.push_back(model_.at(last));
    MergeOptions options;
    for (size_t i = 0; i < steps.size(); ++i) {
      options.weights.push_back(static_cast<double>(random_.Between(1, 9)));
    }
    const ModelStep expected = MeanOf(contents, options.weights);
    const auto merged = store_->Merge(steps, into, options);
    ++counts_["merged"];
    if (merged) {
      model_[into] = expected;
      return;
    }
    ASSERT_TRUE(faulty_ != nullptr) << merged.error().ToString();
    Recover(into, expected);
    SetFaults(true);
  }

  /// Training continues from an older step.
  void ReturnToOlderStep() {
    if (!model_.empty()) state_.Set(model_.at(AnyStep()));
  }

  void CheckOne() {
    if (model_.empty()) return;
    SetFaults(false);
    const uint64_t step = AnyStep();
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store_->Steps());
    const auto found = std::ranges::find(steps, step, &kv::StepInfo::step);
    ASSERT_TRUE(found != steps.end()) << step;
    ExpectStep(*found);
    SetFaults(true);
  }

  uint64_t AnyStep() {
    auto step = model_.begin();
    std::advance(step, random_.Between(0, model_.size() - 1));
    return step->first;
  }

  bool Matches(const kv::StepInfo& info, const ModelStep& expected) {
    const auto contents = store_->List(info.step);
    EXPECT_TRUE(testing::IsOk(contents));
    if (!contents || contents->tensors.size() != expected.size()) return false;
    for (const TensorInfo& tensor : contents->tensors) {
      const auto found = expected.find(tensor.fqn);
      if (found == expected.end() || found->second.dtype != tensor.dtype ||
          found->second.shape != tensor.shape) {
        return false;
      }
      TestTensor target(tensor.dtype, tensor.shape, 77);
      const LoadRequest request = WholeRequest(tensor.fqn, target);
      EXPECT_TRUE(testing::IsOk(store_->Load(info, {&request, 1})));
      if (target.bytes != *found->second.bytes) return false;
    }
    return true;
  }
  void ExpectStep(const kv::StepInfo& info) {
    EXPECT_TRUE(Matches(info, model_.at(info.step))) << "step " << info.step;
  }

  testing::SeededRandom random_;
  testing::SeededRandom fault_random_{random_.seed() + 1};
  const std::shared_ptr<kv::Storage> storage_;
  FaultyStorage* faulty_;
  ModelState state_;
  std::map<uint64_t, ModelStep> model_;
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<AsyncSaver> saver_;
  uint64_t next_step_ = 1;
  std::map<std::string, uint64_t> counts_;
};

/// The newest root is searched from a hint, so the number of calls differs a little.
constexpr size_t kMoreCalls = 12;

/// Returns the number of calls of an open for reading.
size_t CallsOfAnOpen(const std::shared_ptr<kv::Storage>& storage) {
  const auto counting = std::make_shared<FaultyStorage>(storage);
  const auto store = CheckpointStore::Open(counting, kv::OpenMode::kRead);
  EXPECT_TRUE(testing::IsOk(store));
  EXPECT_TRUE(store && testing::IsOk((*store)->kv().Latest()));
  return counting->Log().size();
}

size_t CallsOfAnOpenOfANewStore() {
  const auto storage = std::make_shared<MemoryStorage>("new");
  History history(storage, nullptr);
  history.Run(1);
  history.Close();
  return CallsOfAnOpen(storage);
}

TEST(HistoryTest, InADirectory) {
  const testing::ScopedTempDir directory;
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<kv::Storage> storage,
                             kv::OpenStorage(directory.path() + "/store"));
  History history(storage, nullptr);
  history.Run(SaveCount());
  history.ExpectCompact();
  history.Close();
  history.Print("directory");
  EXPECT_LE(CallsOfAnOpen(storage), CallsOfAnOpenOfANewStore() + kMoreCalls);
}

TEST(HistoryTest, InAStorageThatFails) {
  const auto base = std::make_shared<MemoryStorage>("memory");
  const auto faulty = std::make_shared<FaultyStorage>(base);
  History history(faulty, faulty.get());
  history.Run(SaveCount());
  history.ExpectCompact();
  history.Close();
  history.Print("memory with faults");
  EXPECT_LE(CallsOfAnOpen(base), CallsOfAnOpenOfANewStore() + kMoreCalls);
}

}  // namespace
}  // namespace cairn::core
