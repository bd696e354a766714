// Goal: an operation whose n-th file operation fails returns an error with a code that indicates
// what to do next, leaves the store as it was, and succeeds when it is repeated.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "kv/internal/io/fault_point.h"
#include "kv/options.h"
#include "kv/step_info.h"
#include "kv/store.h"
#include "tests/fault/operations.h"
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
using ::testing::IsEmpty;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

Result<Steps> LoadAllFrom(const Store& store) {
  CAIRN_TRY_ASSIGN(const auto snapshot, store.Latest());
  Steps steps;
  for (const StepInfo& info : snapshot->steps()) {
    CAIRN_TRY_ASSIGN(steps[info.step], LoadSample(*snapshot, info.step));
  }
  return steps;
}

void ExpectWholeAndClean(const std::string& path, const Steps& expected) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, Store::Open(path, OpenMode::kWrite, SmallBlocks()));
  EXPECT_THAT(store->recovery_notes(), IsEmpty());
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps found, LoadAllFrom(*store));
  EXPECT_TRUE(found == expected);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto leftovers, FindLeftovers(path));
  EXPECT_THAT(leftovers, IsEmpty());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto damage, Verify(*snapshot));
  EXPECT_THAT(damage, IsEmpty());
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
  ScopedTempDir dir_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};

  /// Makes one attempt on a new copy of the history. Returns whether a fault occurred.
  bool TryWith(uint32_t n, const Steps& before) {
    const auto [operation, error_number, for_good] = GetParam();
    const std::string path = dir_ / fmt::format("copy-{}", n);
    std::filesystem::copy(dir_ / "history", path, std::filesystem::copy_options::recursive);
    const Steps after = After(operation, before);
    bool fired = false;
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
      auto now = LoadAllFrom(**store);
      // A store that could not reopen its index after the failure refuses changes until it is
      // opened again.
      const bool usable = now.has_value();
      if (!usable) {
        EXPECT_EQ(now.error().code, ErrorCode::kFailedPrecondition) << now.error().message;
      }
      if (!result) {
        EXPECT_TRUE(fired) << result.error().ToString();
        EXPECT_TRUE(IsSensible(result.error().code, error_number)) << result.error().ToString();
        EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
        done = result.error().message.find("is committed") != std::string::npos;
      } else {
        done = true;
      }
      if (usable) {
        EXPECT_TRUE(*now == (done ? after : before));
        if (!done) {
          // Whatever failed, the operation succeeds when it is repeated on the same store.
          EXPECT_TRUE(IsOk(Perform(operation, **store)));
          auto then = LoadAllFrom(**store);
          EXPECT_TRUE(IsOk(then) && *then == after);
          done = true;
        }
      }
      EXPECT_TRUE(IsOk((*store)->Close()));
      if (::testing::Test::HasFailure()) return false;
    }
    SCOPED_TRACE(fmt::format("reopened after {} at point {}", OperationName(operation), n));
    auto read = LoadAll(path);
    EXPECT_TRUE(IsOk(read) && *read == (done ? after : before));
    ExpectWholeAndClean(path, done ? after : before);
    std::filesystem::remove_all(path);
    return fired && !::testing::Test::HasFailure();
  }
};

TEST_P(FailingOperationTest, LeavesOldStateAndSucceedsWhenRetried) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const Steps before, MakeHistory(dir_ / "history"));
  uint32_t n = 1;
  while (TryWith(n, before)) ++n;
  EXPECT_GT(n, 5u) << "no fault occurred";
  ::testing::Test::RecordProperty("points", static_cast<int>(n - 1));
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

// The index write is durable but reports a failure, and the index cannot be opened again, so that
// it is unknown whether the step exists. Nothing may be removed then; the next open determines it.
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
      ScopedFaults faults([&](const FaultPass& pass, uint32_t) {
        if (pass.point != "index.flushed") return 0;
        std::filesystem::rename(copy + "/index", copy + "/index.away");
        return EIO;
      });
      EXPECT_THAT(Perform(operation, *store), IsError(ErrorCode::kUnavailable, "open it again"));
    }
    EXPECT_THAT(store->Begin(9, {}), IsError(ErrorCode::kFailedPrecondition, "open it again"));
    EXPECT_THAT(store->Delete(std::array<uint64_t, 1>{2}),
                IsError(ErrorCode::kFailedPrecondition, "open it again"));
    store.reset();
    std::filesystem::remove_all(copy + "/index");
    std::filesystem::rename(copy + "/index.away", copy + "/index");
    CAIRN_ASSERT_OK_AND_ASSIGN(const Steps read, LoadAll(copy));
    EXPECT_TRUE(read == After(operation, before));
    ExpectWholeAndClean(copy, After(operation, before));
  }
}

}  // namespace
}  // namespace cairn::kv
