// Goal: whatever happens to one call of the operating system during an operation on a store, every
// committed step is there afterwards, complete and bit for bit; the operation reports truthfully
// what became of it; the next open for writing leaves nothing behind, and the next save succeeds.
//
// - A failure: the n-th call fails, or all from the n-th on; or it is interrupted, or transfers a
//   part of its bytes, and then the operation succeeds.
// - A kill and a power cut after the n-th change (tests/fault/disk_model.h).
//
// By default, a part of the calls and a few states per call are tested, another part in each run.
// CAIRN_SWEEP_STATES (3) is the number of random states of each power cut, and CAIRN_FAULT_ALL
// tests every call.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "core/checkpoint_store.h"
#include "kv/store.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/fault/disk_model.h"
#include "tests/fault/sweep_operations.h"
#include "tests/fault/system_calls.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"

namespace cairn::testing {
namespace {

namespace fs = std::filesystem;
using core::CheckpointStore;
using std::chrono::milliseconds;

constexpr milliseconds kPatient{60'000};
constexpr milliseconds kImpatient{300};

bool TestsAll() { return std::getenv("CAIRN_FAULT_ALL") != nullptr; }

uint64_t StatesPerCut() {
  const char* given = std::getenv("CAIRN_SWEEP_STATES");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : TestsAll() ? 20 : 3;
}

/// Saves a step, as the next writer does.
void SaveNext(const std::string& path) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                             CheckpointStore::Open(path, kv::OpenMode::kWrite, SweptOptions()));
  const core::TestTensor tensor(core::DType::kInt8, {100});
  core::StateDict state;
  state.root().Tensor("next", tensor.view());
  CAIRN_EXPECT_OK(store->Save(100, state));
  CAIRN_EXPECT_OK(store->Close());
}

class SweepTest : public ::testing::TestWithParam<SweptOperation> {
 protected:
  void SetUp() override {
    CAIRN_ASSERT_OK(repeated_.Prepare());
    ASSERT_EQ(states_.front() == states_.back(), operation_.commits == 0);
    ASSERT_EQ(states_.size(), std::max<uint64_t>(operation_.commits, 1) + 1);
  }

  /// Performs the operation in the directory, which holds the state `found`.
  void Repeat(const std::string& name, const StoreContents& found) {
    if (found == states_.back()) return;
    EXPECT_TRUE(IsOk(repeated_.Perform(kPatient, name).performed));
    const auto contents = ReadStore(repeated_.StoreIn(name));
    EXPECT_TRUE(IsOk(contents) && *contents == states_.back());
  }

  const SweptOperation& operation_ = GetParam();
  // Calls and states are counted, so tmpfs is as good as a disk.
  ScopedTempDir dir_{FastDirectory()};
  RepeatedOperation repeated_{.operation = operation_, .directory = dir_.path()};
  const std::vector<StoreContents>& states_ = repeated_.states;
  SeededRandom random_;
};

// --- failures

struct Failure {
  const char* name;
  int error_number;
  FailingCalls::Extent extent;
  /// Whether the operation succeeds nevertheless.
  bool is_harmless = false;
};
constexpr Failure kFailures[] = {
    {"EIO", EIO, FailingCalls::Extent::kOnce},
    {"EIO for good", EIO, FailingCalls::Extent::kForGood},
    {"ENOSPC", ENOSPC, FailingCalls::Extent::kOnce},
    {"ENOSPC for good", ENOSPC, FailingCalls::Extent::kForGood},
    {"EDQUOT", EDQUOT, FailingCalls::Extent::kOnce},
    {"EMFILE", EMFILE, FailingCalls::Extent::kOnce},
    {"EINTR", EINTR, FailingCalls::Extent::kOnce, true},
    {"a short transfer", 0, FailingCalls::Extent::kOnce, true},
};

/// Whether the code indicates what to do about a failure. Ranks may miss their deadline, too.
bool IsSensible(ErrorCode code, int error_number, bool has_ranks) {
  if (has_ranks && code == ErrorCode::kUnavailable) return true;
  switch (error_number) {
    case EIO:  // a read that fails with EIO is a damaged medium
      return code == ErrorCode::kUnavailable || code == ErrorCode::kDataLoss;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
      return code == ErrorCode::kResourceExhausted;
    default:
      return false;
  }
}

class FailureSweepTest : public SweepTest {
 protected:
  /// Returns whether there was an n-th call.
  bool RunWithFailure(const Failure& failure, uint64_t n) {
    bool fired = false;
    std::string call;
    Outcome outcome;
    const auto run = [&](milliseconds patience) {
      repeated_.StartAnew();
      FailingCalls calls(dir_ / "work", n, failure.error_number, failure.extent);
      outcome = repeated_.Perform(patience);
      fired = calls.fired();
      call = calls.fired_at();
    };
    // On a busy machine, ranks can be too slow for the short deadline before anything has failed.
    run(failure.is_harmless ? kPatient : kImpatient);
    if (!fired && !outcome.performed) run(kPatient);
    SCOPED_TRACE(fmt::format("{} at call {} ({}): {}", failure.name, n, call,
                             outcome.performed ? "success" : outcome.performed.error().ToString()));
    if (failure.is_harmless) {
      EXPECT_TRUE(outcome.performed.has_value());
    }
    const StoreContents found = CheckStore(repeated_.StoreIn(), states_);
    if (outcome.performed) {
      EXPECT_EQ(found, states_.back()) << "an acknowledged change is lost";
    } else {
      EXPECT_TRUE(fired);
      EXPECT_TRUE(IsSensible(outcome.performed.error().code, failure.error_number,
                             operation_.name.contains("ranks")));
      if (found == states_.back() && operation_.commits > 0) {
        EXPECT_TRUE(MayBeCommitted(outcome.performed.error()))
            << "it was committed, but the error does not say that it may be";
      }
      Repeat("work", found);
    }
    SaveNext(repeated_.StoreIn());
    return fired && !HasFailure();
  }
};

TEST_P(FailureSweepTest, LosesNothingAndIsReportedTruthfully) {
  uint64_t faults = 0;
  for (const Failure& failure : kFailures) {
    const uint64_t stride = TestsAll() ? 1 : operation_.call_stride;
    for (uint64_t n = TestsAll() ? 1 : random_.Between(1, stride); RunWithFailure(failure, n);
         n += stride) {
      ++faults;
    }
    if (HasFailure()) return;
  }
  fmt::print("{}: {} failures injected\n", operation_.name, faults);
  EXPECT_GT(faults, TestsAll() ? 100u : 4u);
}

// --- kills and power cuts

/// Returns what a power cut may leave.
std::vector<DiskImage> ImagesAfterPowerCut(const DiskModel& disk, SeededRandom& random) {
  std::vector<DiskImage> images = {disk.Durable(), disk.NamesOnly()};
  for (uint64_t i = 0; i < StatesPerCut(); ++i) images.push_back(disk.Mixture(random));
  return images;
}

class CutSweepTest : public SweepTest {
 protected:
  /// Checks the image, unless it is one that was checked. Returns the number of the state.
  size_t CheckImage(const DiskImage& image) {
    const auto [state, is_new] = seen_.try_emplace(DigestOf(image));
    if (!is_new) return state->second;
    WriteImage(image, dir_ / "cut");
    const StoreContents found = CheckStore(repeated_.StoreIn("cut"), states_);
    Repeat("cut", found);
    SaveNext(repeated_.StoreIn("cut"));
    const auto at = std::ranges::find(states_, found);
    state->second = static_cast<size_t>(at - states_.begin());
    return state->second;
  }

  std::map<uint64_t, size_t> seen_;  // by digest
};

TEST_P(CutSweepTest, LosesNothingAtAnyChange) {
  repeated_.StartAnew();
  DiskModel disk(dir_ / "work");
  ChangeRecorder recorder(dir_ / "work");
  const Outcome outcome = repeated_.Perform(kPatient);
  CAIRN_ASSERT_OK(outcome.performed);
  const std::vector<FileChange> changes = recorder.changes();
  ASSERT_GT(changes.size(), 10u);
  const uint64_t stride = TestsAll() ? 1 : operation_.cut_stride;
  uint64_t cuts = 0;
  size_t newest = 0;  // state that a kill has left
  uint64_t next = TestsAll() ? 0 : random_.Between(0, stride - 1);
  for (size_t i = 0; i <= changes.size(); ++i) {
    const bool is_end = i == changes.size();
    if (i == next || is_end) {
      next += stride;
      SCOPED_TRACE(fmt::format("after change {} of {}: {}", i, changes.size(),
                               i == 0 ? "" : changes[i - 1].path + " " + changes[i - 1].to));
      const size_t left = CheckImage(disk.All());
      EXPECT_GE(left, newest) << "a later kill left an older state";
      newest = left;
      const std::vector<DiskImage> images = ImagesAfterPowerCut(disk, random_);
      for (const DiskImage& image : images) {
        const size_t state = CheckImage(image);
        if (is_end && operation_.commits > 0) {
          EXPECT_EQ(state, states_.size() - 1) << "an acknowledged change is lost";
        }
      }
      cuts += images.size() + 1;
      if (HasFailure()) return;
    }
    if (!is_end) disk.Apply(changes[i]);
  }
  fmt::print("{}: {} kills and power cuts, {} different images\n", operation_.name, cuts,
             seen_.size());
}

// A rebuild begins with a store that nobody can open, and can be repeated.
TEST(RebuildSweepTest, LosesNothingAtAnyChange) {
  ScopedTempDir dir(FastDirectory());
  CAIRN_ASSERT_OK(SweptOperations().back().prepare(dir / "work"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StoreContents steps, ReadStore(dir / "work/store"));
  fs::remove_all(dir / "work/store/roots");
  DiskModel disk(dir / "work");
  ChangeRecorder recorder(dir / "work");
  CAIRN_ASSERT_OK(kv::Store::Rebuild(dir / "work/store"));
  const std::vector<FileChange> changes = recorder.changes();
  SeededRandom random;
  std::set<uint64_t> seen;
  for (size_t i = 0; i <= changes.size(); ++i) {
    SCOPED_TRACE(fmt::format("after change {} of {}", i, changes.size()));
    std::vector<DiskImage> images = ImagesAfterPowerCut(disk, random);
    images.push_back(disk.All());
    for (DiskImage& image : images) {
      // This process lives, so its lease would refuse another rebuild.
      std::erase_if(image, [](const auto& file) { return file.first.contains("/leases/"); });
      if (!seen.insert(DigestOf(image)).second) continue;
      WriteImage(image, dir / "cut");
      if (!ReadStore(dir / "cut/store")) {
        CAIRN_ASSERT_OK(kv::Store::Rebuild(dir / "cut/store"));
      }
      CheckStore(dir / "cut/store", {steps});
      SaveNext(dir / "cut/store");
      if (HasFailure()) return;
    }
    if (i < changes.size()) disk.Apply(changes[i]);
  }
}

std::string TestName(const ::testing::TestParamInfo<SweptOperation>& info) {
  std::string name = info.param.name;
  std::ranges::replace(name, ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Of, FailureSweepTest, ::testing::ValuesIn(SweptOperations()), TestName);
INSTANTIATE_TEST_SUITE_P(Of, CutSweepTest, ::testing::ValuesIn(SweptOperations()), TestName);

}  // namespace
}  // namespace cairn::testing
