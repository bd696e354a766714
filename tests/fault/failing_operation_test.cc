// Goal: an operation whose n-th file operation fails reports truthfully what became of it. If it
// reports success, it is done. If it reports an error, the store is as it was, the code indicates
// what to do next, and the operation succeeds when it is repeated; or the error says that the
// outcome is unknown, and then the next open finds the old or the new state.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
#include "tests/kv/store_checks.h"
#include "tests/support/fault_hook.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::FailFromNth;
using cairn::testing::FailNth;
using cairn::testing::FaultPass;
using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

bool IsUnknown(const Error& error) {
  return error.message.find("it is unknown whether") != std::string::npos;
}

bool IsSensible(ErrorCode code, int error_number) {
  if (error_number == ENOSPC) return code == ErrorCode::kResourceExhausted;
  // A read that fails with EIO is a damaged medium.
  return code == ErrorCode::kUnavailable || code == ErrorCode::kDataLoss;
}

struct FailCase {
  Operation operation;
  int error_number;
  bool for_good;  // all operations from the n-th on fail
};

class FailingOperationTest : public ::testing::TestWithParam<FailCase> {
 protected:
  // tmpfs, because these tests make hundreds of small synced writes, and no power failure.
  ScopedTempDir dir_{cairn::testing::FastDirectory()};

  /// Makes one attempt on a new copy of the history. Returns whether a fault occurred.
  bool TryWith(uint32_t n, const Steps& before) {
    const auto [operation, error_number, for_good] = GetParam();
    const std::string path = dir_ / fmt::format("copy-{}", n);
    std::filesystem::copy(dir_ / "history", path, std::filesystem::copy_options::recursive);
    const Steps after = After(operation, before);
    bool fired = false;
    bool is_unknown = false;
    bool done = false;
    {
      auto store = Store::Open(path, OpenMode::kWrite, SmallBlocks());
      EXPECT_TRUE(IsOk(store));
      Result<void> result;
      std::string point;
      {
        ScopedFaults faults(for_good ? FailFromNth(n, error_number) : FailNth(n, error_number));
        result = Perform(operation, **store);
        fired = faults.fired();
        point = faults.fired_at();
      }
      SCOPED_TRACE(fmt::format("{} with errno {} at point {} ({}){}", OperationName(operation),
                               error_number, n, point, for_good ? " for good" : ""));
      done = result.has_value();
      if (!result) {
        EXPECT_TRUE(fired) << result.error().ToString();
        EXPECT_TRUE(IsSensible(result.error().code, error_number)) << result.error().ToString();
        EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
        is_unknown = IsUnknown(result.error());
      }
      if (is_unknown) {
        ++unknown_;
        // The only failure that leaves the outcome open is one of the put of the root.
        EXPECT_TRUE(point.starts_with("roots.")) << result.error().ToString();
        EXPECT_THAT(Perform(operation, **store),
                    IsError(ErrorCode::kFailedPrecondition, "open it again"));
      } else {
        ExpectUsable(**store, operation, done ? after : before, done ? nullptr : &after);
        done = true;
      }
      EXPECT_TRUE(IsOk((*store)->Close()));
      if (::testing::Test::HasFailure()) return false;
    }
    SCOPED_TRACE(fmt::format("reopened after {} at point {}", OperationName(operation), n));
    auto read = LoadAll(path);
    EXPECT_TRUE(IsOk(read) && (*read == after || (is_unknown && *read == before)));
    if (read) ExpectWholeAndClean(path, *read, SmallBlocks());
    std::filesystem::remove_all(path);
    return fired && !::testing::Test::HasFailure();
  }

  /// Checks that the store has the steps `now`, and that the operation can be repeated if it has
  /// failed.
  void ExpectUsable(Store& store, Operation operation, const Steps& now, const Steps* after) {
    const auto found = LoadAllFrom(store);
    EXPECT_TRUE(IsOk(found) && *found == now);
    // Readers agree with the writer.
    const auto read = LoadAll(store.directory());
    EXPECT_TRUE(IsOk(read) && *read == now);
    if (after == nullptr) return;
    EXPECT_TRUE(IsOk(Perform(operation, store)));
    const auto then = LoadAllFrom(store);
    EXPECT_TRUE(IsOk(then) && *then == *after);
  }

  uint32_t unknown_ = 0;
};

TEST_P(FailingOperationTest, IsReportedTruthfullyAndCanBeRetried) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps before, MakeHistory(dir_ / "history"));
  uint32_t n = 1;
  while (TryWith(n, before)) ++n;
  EXPECT_GT(n, 5u) << "no fault occurred";
  ::testing::Test::RecordProperty("points", static_cast<int>(n - 1));
  // A single failure never leaves the outcome open: the writer reads the root.
  EXPECT_TRUE(GetParam().for_good || unknown_ == 0);
}

std::vector<FailCase> AllFailCases() {
  std::vector<FailCase> cases;
  for (const Operation operation : kOperations) {
    cases.push_back({operation, EIO, /*for_good=*/false});
    cases.push_back({operation, ENOSPC, /*for_good=*/true});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Every, FailingOperationTest, ::testing::ValuesIn(AllFailCases()),
                         [](const auto& info) {
                           std::string name =
                               fmt::format("{}_{}_{}", OperationName(info.param.operation),
                                           info.param.error_number == EIO ? "EIO" : "ENOSPC",
                                           info.param.for_good ? "ForGood" : "Once");
                           std::erase(name, '-');
                           return name;
                         });

// The root exists, but its directory cannot be synced, so that a power failure decides whether the
// step exists. Nothing may be removed then; the next open determines the outcome.
TEST(UnknownOutcomeTest, CommitThatMayBeDurableKeepsItsFilesUntilTheNextOpen) {
  ScopedTempDir dir;
  const std::string path = dir / "store";
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps before, MakeHistory(path));
  for (const Operation operation : {Operation::kCommit, Operation::kDelete}) {
    SCOPED_TRACE(OperationName(operation));
    const std::string copy = dir / OperationName(operation);
    std::filesystem::copy(path, copy, std::filesystem::copy_options::recursive);
    CAIRN_ASSERT_OK_AND_ASSIGN(auto store, Store::Open(copy, OpenMode::kWrite, SmallBlocks()));
    {
      ScopedFaults faults([](const FaultPass& pass, uint32_t) {
        return pass.point == "roots.directory_sync" ? EIO : 0;
      });
      EXPECT_THAT(Perform(operation, *store),
                  IsError(ErrorCode::kUnavailable, "it is unknown whether root"));
    }
    EXPECT_THAT(store->Begin(9, {}), IsError(ErrorCode::kFailedPrecondition, "open it again"));
    EXPECT_THAT(store->Delete(std::array<uint64_t, 1>{2}),
                IsError(ErrorCode::kFailedPrecondition, "open it again"));
    store.reset();
    ExpectSteps(copy, After(operation, before));
    ExpectWholeAndClean(copy, After(operation, before), SmallBlocks());
  }
}

// What a failed put leaves must not hide the success of a commit from the caller: the root exists.
TEST(UnknownOutcomeTest, FailureAfterTheRootExistsIsReportedAsSuccess) {
  ScopedTempDir dir;
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps before, MakeHistory(dir / "store"));
  for (const char* point : {"roots.linked", "roots.directory_sync", "roots.done", "roots.remove"}) {
    SCOPED_TRACE(point);
    const std::string copy = dir / point;
    std::filesystem::copy(dir / "store", copy, std::filesystem::copy_options::recursive);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               Store::Open(copy, OpenMode::kWrite, SmallBlocks()));
    {
      ScopedFaults faults(cairn::testing::FailAt(point, 1, EIO));
      CAIRN_EXPECT_OK(Perform(Operation::kCommit, *store));
      EXPECT_TRUE(faults.fired());
    }
    ExpectSteps(copy, After(Operation::kCommit, before));
    CAIRN_EXPECT_OK(store->Delete(std::array<uint64_t, 1>{4}));
  }
}

}  // namespace
}  // namespace cairn::kv
