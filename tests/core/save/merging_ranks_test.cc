// Several ranks merge the records of all ranks: the step is the same as if rank 0 had merged alone,
// whatever the number of merging ranks, and a merging rank that fails fails the save.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/save/internal/save.h"
#include "core/save/internal/save_planner.h"
#include "core/simulated_rank.h"
#include "kv/internal/commit/root_change.h"
#include "kv/internal/commit/store_state.h"
#include "kv/internal/parts/range_task.h"
#include "kv/internal/storage/memory_storage.h"
#include "kv/open_storage.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::ScopedTempDir;
using ::testing::IsEmpty;

constexpr uint32_t kRanks = 9;
constexpr uint64_t kColumns = 4;

/// Tensors of which each rank has one row per tensor, whole tensors, and values.
struct Job {
  uint32_t tensors = 200;
  uint32_t seed = 0;  // of the contents
  std::function<bool(uint32_t tensor, uint32_t rank)> has_row = [](uint32_t, uint32_t) {
    return true;
  };
  std::function<uint32_t(uint32_t tensor)> seed_of = [](uint32_t) { return 0; };

  std::string NameOf(uint32_t tensor) const { return fmt::format("layers.{:03}.weight", tensor); }

  std::vector<float> Row(uint32_t tensor, uint32_t rank) const {
    std::vector<float> row(kColumns);
    for (uint64_t i = 0; i < kColumns; ++i) {
      row[i] = static_cast<float>(seed + seed_of(tensor)) + static_cast<float>(tensor) * 1000.0f +
               static_cast<float>(rank) * 10.0f + static_cast<float>(i);
    }
    return row;
  }

  /// Returns what `rank` holds; `memory` has the elements.
  StateDict Of(uint32_t rank, std::vector<std::vector<float>>& memory) const {
    memory.clear();
    memory.reserve(tensors + 1);
    StateDict state;
    auto model = state.root().Map("model");
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      Sharding sharding{
          .global_shape = {kRanks, kColumns}, .mesh = nullptr, .placements = {}, .parts = {}};
      if (has_row(tensor, rank)) {
        const auto& row = memory.emplace_back(Row(tensor, rank));
        sharding.parts.push_back(
            {.box = {.offsets = {rank, 0}, .sizes = {1, kColumns}},
             .view = {.dtype = DType::kFloat32,
                      .shape = {1, kColumns},
                      .strides = {},
                      .data = reinterpret_cast<const std::byte*>(row.data())}});
      }
      model.Sharded(NameOf(tensor), {.dtype = DType::kFloat32}, std::move(sharding));
    }
    const auto& whole = memory.emplace_back(Row(999, 0));
    model.Tensor("whole", {.dtype = DType::kFloat32,
                           .shape = {kColumns},
                           .strides = {},
                           .data = reinterpret_cast<const std::byte*>(whole.data())});
    state.root().Value("epoch", int64_t{7});
    return state;
  }
};

class MergingRanksTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string_view("memory")) {
      storage_ = std::make_shared<kv::internal::MemoryStorage>("test");
    } else {
      CAIRN_ASSERT_OK_AND_ASSIGN(storage_, kv::OpenStorage(directory_.path()));
    }
    Reopen();
  }

  void Reopen() {
    writer_.reset();
    CAIRN_ASSERT_OK_AND_ASSIGN(writer_, kv::Store::Open(storage_, kv::OpenMode::kWrite,
                                                        {.grace = std::chrono::milliseconds(0)}));
  }

  SaveOptions Merging(uint32_t count, bool incremental = false) const {
    return {.incremental = incremental,
            .deadline = deadline_,
            .merging = {.count = count, .min_chunks = 1}};
  }

  /// What a rank does after its plan; returns its error.
  using Rank = std::function<Result<void>(kv::Store&, const internal::SaveAttempt&, uint32_t rank)>;

  Result<void> SaveRank(kv::Store& store, const internal::SaveAttempt& attempt, uint32_t rank,
                        const Job& job, const SaveOptions& options) {
    std::vector<std::vector<float>> memory;
    const StateDict state = job.Of(rank, memory);
    const internal::RankInWorld self{.rank = rank, .world_size = kRanks};
    CAIRN_TRY_ASSIGN(internal::SavePlan plan, internal::PlanSave(state, options, self));
    internal::WorkerPool pool(1);
    auto saved = internal::RunSave(
        plan, {.store = store, .attempt = attempt, .self = self, .options = options, .pool = pool});
    if (saved) return {};
    (void)store.FailAttempt(attempt.name, rank, saved.error());
    return Fail(saved.error());
  }

  /// Writes the part of step 1, and nothing after that.
  static Result<void> Prepare(kv::Store& store, const internal::SaveAttempt& attempt, uint32_t rank,
                              const SaveOptions& options) {
    std::vector<std::vector<float>> memory;
    const StateDict state = Job().Of(rank, memory);
    return PrepareRank(store,
                       {.step = 1, .attempt = attempt.name, .rank = rank, .world_size = kRanks},
                       state, options);
  }

  /// Runs all ranks as threads; `run` replaces what SaveRank does. Returns the errors by rank.
  std::vector<Result<void>> RunAll(uint64_t step, const SaveOptions& options, const Rank& run) {
    kv::StoreOptions join;
    join.session = writer_->OpenSession().value();
    std::vector<Result<void>> results(kRanks);
    internal::SaveAttempt attempt{.step = step, .merging = options.merging};
    attempt.deadline = std::chrono::steady_clock::now() + options.deadline;
    attempt.decision_deadline = attempt.deadline + std::chrono::seconds(2);
    attempt.name = writer_->NextAttempt(step);
    {
      std::vector<std::jthread> ranks;
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back([&, rank] {
          if (rank == 0) {
            results[rank] = run(*writer_, attempt, rank);
            return;
          }
          auto joined = kv::Store::Open(storage_, kv::OpenMode::kJoinSession, join);
          ASSERT_TRUE(IsOk(joined));
          results[rank] = run(**joined, attempt, rank);
        });
      }
    }
    return results;
  }

  std::vector<Result<void>> Save(uint64_t step, const Job& job, const SaveOptions& options) {
    return RunAll(step, options,
                  [&](kv::Store& store, const internal::SaveAttempt& attempt, uint32_t rank) {
                    return SaveRank(store, attempt, rank, job, options);
                  });
  }

  void ExpectSaved(uint64_t step, const Job& job, const SaveOptions& options) {
    const auto results = Save(step, job, options);
    for (uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(IsOk(results[rank])) << rank;
    ExpectContents(step, job);
  }

  /// Loads the step and compares every element.
  void ExpectContents(uint64_t step, const Job& job) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               CheckpointStore::Open(storage_, kv::OpenMode::kRead));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(step));
    ASSERT_EQ(contents.tensors.size(), job.tensors + 1);
    std::vector<std::vector<float>> loaded(job.tensors, std::vector<float>(kRanks * kColumns));
    std::vector<LoadRequest> requests;
    const Shape shape = {kRanks, kColumns};
    for (uint32_t tensor = 0; tensor < job.tensors; ++tensor) {
      requests.push_back({.fqn = "model." + job.NameOf(tensor),
                          .box = WholeBox(shape),
                          .target = {.dtype = DType::kFloat32,
                                     .shape = shape,
                                     .strides = {},
                                     .data = reinterpret_cast<std::byte*>(loaded[tensor].data())}});
    }
    CAIRN_ASSERT_OK(store->Load(contents.step, requests));
    for (uint32_t tensor = 0; tensor < job.tensors; ++tensor) {
      std::vector<float> expected;
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        const auto row = job.Row(tensor, rank);
        expected.insert(expected.end(), row.begin(), row.end());
      }
      EXPECT_EQ(loaded[tensor], expected) << tensor;
    }
    std::vector<Error> damage;
    CAIRN_EXPECT_OK(
        store->Verify({}, [&](const kv::Damage& found) { damage.push_back(found.error); }));
    EXPECT_THAT(damage, IsEmpty());
  }

  kv::internal::StepEntryPtr EntryOf(uint64_t step) {
    return kv::internal::CurrentRoot(*writer_->state())->steps.Find(step).value();
  }

  std::vector<std::string> Names(const std::string& folder) {
    return storage_->List(folder).value();
  }

  std::chrono::milliseconds deadline_ = std::chrono::seconds(60);
  ScopedTempDir directory_;
  std::shared_ptr<kv::Storage> storage_;
  std::unique_ptr<kv::Store> writer_;
};

INSTANTIATE_TEST_SUITE_P(Storages, MergingRanksTest, ::testing::Values("memory", "directory"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(MergingRanksTest, StepDoesNotDependOnTheNumberOfMergingRanks) {
  const Job job;
  ExpectSaved(1, job, Merging(1));
  EXPECT_TRUE(EntryOf(1)->tables.front().ranges.empty());

  for (const uint32_t count : {2, 3, 5, 8}) {
    ExpectSaved(count, job, Merging(count));

    const auto entry = EntryOf(count);
    EXPECT_EQ(entry->tables.size(), 1u);
    EXPECT_EQ(entry->tables.front().ranges.size(), count);
    EXPECT_EQ(entry->tables.front().total_record_count(),
              EntryOf(1)->tables.front().total_record_count());
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               CheckpointStore::Open(storage_, kv::OpenMode::kRead));
    CAIRN_ASSERT_OK_AND_ASSIGN(const Diff diff, store->Compare(1, count));
    EXPECT_THAT(diff.changes, IsEmpty());
  }
}

TEST_P(MergingRanksTest, IncrementalSavesKeepTheTablesOfTheBase) {
  Job job;
  ExpectSaved(1, job, Merging(4));
  job.seed_of = [](uint32_t tensor) { return tensor == 17 ? 5 : 0; };

  ExpectSaved(2, job, Merging(4, /*incremental=*/true));

  // Only the range of the tensor has a new table; what did not change is in those of step 1.
  ASSERT_EQ(EntryOf(2)->tables.size(), 2u);
  EXPECT_EQ(EntryOf(2)->tables.back(), EntryOf(1)->tables.front());
  ASSERT_EQ(EntryOf(2)->tables.front().ranges.size(), 1u);
  EXPECT_EQ(EntryOf(2)->tables.front().ranges.front().record_count, kRanks);
  EXPECT_EQ(EntryOf(2)->info.reused_chunk_count, EntryOf(2)->info.chunk_count - kRanks);

  // Rank 0 alone merges divided tables, and others are divided over what rank 0 wrote.
  job.seed = 100;
  ExpectSaved(3, job, Merging(1, /*incremental=*/true));
  job.tensors = 150;
  ExpectSaved(4, job, Merging(3, /*incremental=*/true));
  job.tensors = 230;
  ExpectSaved(5, job, Merging(8, /*incremental=*/true));
  CAIRN_ASSERT_OK(writer_->Delete(std::vector<uint64_t>{1, 2}));
  ExpectContents(5, job);
}

TEST_P(MergingRanksTest, FewChunksAreMergedByRankZeroAlone) {
  SaveOptions options = Merging(4);
  options.merging.min_chunks = 10'000;

  ExpectSaved(1, Job(), options);

  EXPECT_TRUE(EntryOf(1)->tables.front().ranges.empty());
}

TEST_P(MergingRanksTest, OneTensorIsOneRange) {
  Job job;
  job.tensors = 1;

  ExpectSaved(1, job, Merging(4));

  EXPECT_LE(EntryOf(1)->tables.front().ranges.size(), 2u);  // it and the whole tensor
}

TEST_P(MergingRanksTest, DeletedStepLeavesNoTables) {
  ExpectSaved(1, Job(), Merging(4));
  ExpectSaved(2, Job(), Merging(4));
  EXPECT_GT(Names("tables/").size(), 4u);

  CAIRN_ASSERT_OK(writer_->Delete(std::vector<uint64_t>{1, 2}));
  Reopen();

  EXPECT_THAT(Names("tables/"), IsEmpty());
}

TEST_P(MergingRanksTest, MissingRowIsNamed) {
  Job job;
  job.has_row = [](uint32_t tensor, uint32_t rank) { return tensor != 12 || rank != 5; };

  const auto results = Save(1, job, Merging(4));

  for (const auto& result : results) {
    EXPECT_THAT(result, IsError(ErrorCode::kInvalidArgument, "no rank wrote element"));
    EXPECT_EQ(result.error().key, "model." + job.NameOf(12));
  }
  EXPECT_EQ(EntryOf(1), nullptr);
}

TEST_P(MergingRanksTest, MergingRankThatDiesIsNamedAtTheDeadline) {
  deadline_ = std::chrono::seconds(10);
  const SaveOptions options = Merging(4);
  const uint32_t dead = options.merging.RankOf(2, kRanks);

  const auto results = RunAll(
      1, options,
      [&](kv::Store& store, const internal::SaveAttempt& attempt, uint32_t rank) -> Result<void> {
        return rank == dead ? Prepare(store, attempt, rank, options)
                            : SaveRank(store, attempt, rank, Job(), options);
      });

  EXPECT_THAT(results[0], IsError(ErrorCode::kUnavailable, fmt::format("rank {} had not", dead)));
  EXPECT_EQ(EntryOf(1), nullptr);
  // What the others wrote is removed by the next open for writing, and the store can be used.
  Reopen();
  EXPECT_THAT(Names("tables/"), IsEmpty());
  EXPECT_THAT(Names("pending/"), IsEmpty());
  deadline_ = std::chrono::seconds(60);
  ExpectSaved(1, Job(), Merging(4));
}

TEST_P(MergingRanksTest, DamagedChunksOfAPartFailTheSave) {
  const SaveOptions options = Merging(3);

  const auto results = RunAll(
      1, options, [&](kv::Store& store, const internal::SaveAttempt& attempt, uint32_t rank) {
        if (rank == 8) {
          // An object with other bytes has the name already when rank 8 puts its chunks.
          CAIRN_EXPECT_OK(storage_->PutIfAbsent(fmt::format("pending/{}/8.0.data", attempt.name),
                                                std::vector<std::byte>(1 << 16)));
        }
        return SaveRank(store, attempt, rank, Job(), options);
      });

  EXPECT_FALSE(results[0].has_value());
  EXPECT_EQ(EntryOf(1), nullptr);
}

TEST_P(MergingRanksTest, GarbageInPlaceOfAResultNamesTheRank) {
  const SaveOptions options = Merging(3);

  const auto results = RunAll(
      1, options, [&](kv::Store& store, const internal::SaveAttempt& attempt, uint32_t rank) {
        if (rank == 0) {
          CAIRN_EXPECT_OK(storage_->PutIfAbsent(kv::internal::ResultName(attempt.name, 1),
                                                std::vector<std::byte>(1000)));
        }
        if (rank == options.merging.RankOf(1, kRanks))
          return Prepare(store, attempt, rank, options);
        return SaveRank(store, attempt, rank, Job(), options);
      });

  EXPECT_THAT(results[0],
              IsError(ErrorCode::kDataLoss, fmt::format("the result of merging rank {}",
                                                        options.merging.RankOf(1, kRanks))));
  EXPECT_EQ(EntryOf(1), nullptr);
}

TEST_P(MergingRanksTest, RebuildFindsDividedTables) {
  ExpectSaved(1, Job(), Merging(4));
  CAIRN_ASSERT_OK(writer_->Close());
  writer_.reset();
  for (const std::string& name : Names("roots/")) CAIRN_ASSERT_OK(storage_->Remove(name));

  CAIRN_ASSERT_OK_AND_ASSIGN(const auto report, kv::Store::Rebuild(storage_, {.take_over = true}));

  EXPECT_THAT(report.lost, IsEmpty());
  Reopen();
  EXPECT_GT(EntryOf(1)->tables.front().ranges.size(), 1u);
  ExpectContents(1, Job());
}

}  // namespace
}  // namespace cairn::core
