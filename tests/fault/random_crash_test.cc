// Goal: a store survives whatever happens to it for a long time. Random operations follow each
// other on one store. Each of them is performed, fails at a random call, is killed, or ends with a
// power cut, and the next one continues with what that has left. After each, the store has the
// steps of before or those of after the operation, and of the latter if it was acknowledged.
//
// CAIRN_CRASH_ROUNDS (150) is the number of operations, and CAIRN_TEST_SEED the seed, which every
// failure prints.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "core/checkpoint_store.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/fault/disk_model.h"
#include "tests/fault/sweep_operations.h"
#include "tests/fault/system_calls.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"
#include "tests/support/without_value.h"

namespace cairn::testing {
namespace {

namespace fs = std::filesystem;
using core::CheckpointStore;
using core::DType;
using core::TestTensor;

/// A store with random steps, and the operations on it.
class RandomCrashTest : public ::testing::Test {
 protected:
  using Operation = std::function<Result<void>(CheckpointStore&)>;

  std::string path() const { return dir_ / "work/store"; }

  Operation MakeSave(uint64_t step) {
    // Some tensors are those of other steps, and some have a few new elements.
    std::vector<TestTensor> tensors;
    for (int i = 0; i < 4; ++i) {
      tensors.emplace_back(DType::kBFloat16, core::Shape{random_.Between(0, 60'000)},
                           static_cast<uint8_t>(random_.Between(0, 3)));
      for (uint64_t j = random_.Between(0, 20); j > 0 && !tensors.back().bytes.empty(); --j) {
        auto& bytes = tensors.back().bytes;
        bytes[random_.Between(0, bytes.size() - 1)] = static_cast<std::byte>(step);
      }
    }
    core::SaveOptions options{.overwrite = true,
                              .incremental = random_.Chance(0.8),
                              .max_deltas = random_.Chance(0.5) ? 3U : 0U,
                              .share_equal = random_.Chance(0.2),
                              .compress = random_.Chance(0.2),
                              .statistics = random_.Chance(0.2),
                              .chunk_bytes = 64 << 10};
    return [tensors, options, step](CheckpointStore& store) -> Result<void> {
      core::StateDict state;
      for (size_t i = 0; i < tensors.size(); ++i) {
        state.root().Tensor(fmt::format("t{}", i), tensors[i].view());
      }
      CAIRN_TRY(store.Save(step, state, options));
      return {};
    };
  }

  /// Returns an operation that is possible in a store with these steps.
  Operation MakeOperation(const StoreContents& steps) {
    const auto any_step = [&] {
      return std::next(steps.begin(), static_cast<long>(random_.Between(0, steps.size() - 1)))
          ->first;
    };
    const uint64_t next = steps.empty() ? 1 : steps.rbegin()->first + 1;
    const uint64_t kind = steps.empty() ? 0 : random_.Between(0, 9);
    if (kind <= 4 && steps.size() < 12) return MakeSave(next);
    if (kind == 5) return MakeSave(any_step());
    if (kind == 6) {
      return [](CheckpointStore& store) { return WithoutValue(store.Compact({.max_dead = 0})); };
    }
    if (kind == 7) {
      return [from = any_step(), next](CheckpointStore& store) {
        return WithoutValue(store.Edit(from, next, {}));
      };
    }
    if (kind == 8) {
      return [step = any_step()](CheckpointStore& store) {
        return store.kv().ChangeTags({{"best", step}});
      };
    }
    return [doomed = std::vector<uint64_t>{any_step()}](CheckpointStore& store) {
      return WithoutValue(store.Delete(doomed));
    };
  }

  /// Opens the store in `directory`, performs the operation, and closes it.
  Result<void> Perform(const std::string& directory, const Operation& operation) const {
    CAIRN_TRY_ASSIGN(const auto store, CheckpointStore::Open(dir_ / (directory + "/store"),
                                                             kv::OpenMode::kWrite, SweptOptions()));
    CAIRN_TRY(operation(*store));
    (void)store->Close();  // a lease that remains is not a failure of the operation
    return {};
  }

  void PerformWithFailure(const Operation& operation, const std::vector<StoreContents>& allowed) {
    static constexpr std::array kErrors = {EIO, ENOSPC, EDQUOT, EMFILE, EINTR, 0};
    const int error_number = kErrors[random_.Between(0, kErrors.size() - 1)];
    const auto extent =
        random_.Chance(0.3) ? FailingCalls::Extent::kForGood : FailingCalls::Extent::kOnce;
    Result<void> result;
    std::string call;
    {
      FailingCalls calls(
          dir_ / "work", random_.Between(1, 200), error_number,
          error_number == EINTR || error_number == 0 ? FailingCalls::Extent::kOnce : extent);
      result = Perform("work", operation);
      call = calls.fired_at();
    }
    SCOPED_TRACE(fmt::format("error {} at {}", error_number, call));
    const StoreContents found = CheckStore(path(), allowed);
    if (result) {
      EXPECT_EQ(found, allowed.back()) << "an acknowledged change is lost";
    } else if (found != allowed.front()) {
      EXPECT_TRUE(MayBeCommitted(result.error())) << result.error().ToString();
    }
  }

  /// Ends the operation after a random number of its changes, or after the last of them.
  void PerformUntilCut(const Operation& operation, const std::vector<StoreContents>& allowed,
                       bool is_power_cut) {
    DiskModel disk(dir_ / "work");
    std::vector<FileChange> changes;
    {
      ChangeRecorder recorder(dir_ / "work");
      CAIRN_EXPECT_OK(Perform("work", operation));
      changes = recorder.changes();
    }
    const uint64_t end = random_.Chance(0.1) ? changes.size() : random_.Between(0, changes.size());
    for (uint64_t i = 0; i < end; ++i) disk.Apply(changes[i]);
    WriteImage(is_power_cut ? disk.Mixture(random_) : disk.All(), dir_ / "work");
    SCOPED_TRACE(fmt::format("{} after change {} of {}", is_power_cut ? "power cut" : "kill", end,
                             changes.size()));
    const StoreContents found = CheckStore(path(), allowed);
    if (end == changes.size()) {
      EXPECT_EQ(found, allowed.back()) << "an acknowledged change is lost";
    }
  }

  ScopedTempDir dir_{FastDirectory()};
  SeededRandom random_;
};

TEST_F(RandomCrashTest, LosesNoCommittedStep) {
  const char* given = std::getenv("CAIRN_CRASH_ROUNDS");
  const uint64_t rounds = given != nullptr ? std::strtoull(given, nullptr, 10) : 150;
  std::array<uint64_t, 4> counts{};
  fs::create_directories(dir_ / "work");
  CAIRN_ASSERT_OK(Perform("work", MakeSave(1)));
  for (uint64_t round = 1; round <= rounds; ++round) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const StoreContents before, ReadStore(path()));
    const Operation operation = MakeOperation(before);
    fs::remove_all(dir_ / "rehearsal");
    fs::copy(dir_ / "work", dir_ / "rehearsal", fs::copy_options::recursive);
    CAIRN_ASSERT_OK(Perform("rehearsal", operation));
    CAIRN_ASSERT_OK_AND_ASSIGN(const StoreContents after, ReadStore(dir_ / "rehearsal/store"));
    const std::vector<StoreContents> allowed = {before, after};
    const uint64_t what = random_.Between(0, counts.size() - 1);
    ++counts[what];
    SCOPED_TRACE(fmt::format("round {}", round));
    if (what == 0) {
      CAIRN_ASSERT_OK(Perform("work", operation));
      CheckStore(path(), {after});
    } else if (what == 1) {
      PerformWithFailure(operation, allowed);
    } else {
      PerformUntilCut(operation, allowed, /*is_power_cut=*/what == 2);
    }
    if (HasFailure()) return;
  }
  fmt::print("{} operations, {} failures, {} power cuts, {} kills\n", counts[0], counts[1],
             counts[2], counts[3]);
}

}  // namespace
}  // namespace cairn::testing
