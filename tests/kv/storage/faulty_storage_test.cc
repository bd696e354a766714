// Each injected fault does what its name states, to the operation that the plan names.

#include "tests/support/faulty_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/io/internal/file.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "tests/support/result_matchers.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class FaultyStorageTest : public ::testing::Test {
 protected:
  /// Installs the fault for every call of one kind of operation.
  void FailEvery(StorageOperation operation, StorageFault fault) {
    storage_.SetPlan([=](const StorageCall& call) {
      return call.operation == operation ? fault : StorageFault::kNone;
    });
  }
  /// What is in the storage below.
  std::vector<std::string> Names() { return base_->List("").value(); }
  uint64_t SizeOf(std::string_view name) { return base_->Size(name).value(); }

  const std::shared_ptr<MemoryStorage> base_ = std::make_shared<MemoryStorage>("test");
  FaultyStorage storage_{base_};
};

TEST_F(FaultyStorageTest, LogsEveryCallInOrder) {
  CAIRN_ASSERT_OK(storage_.Put("lease", AsBytes("1")));
  CAIRN_ASSERT_OK(storage_.PutIfAbsent("roots/1", AsBytes("1")));
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, storage_.Create("tables/a"));
  CAIRN_ASSERT_OK(writer->Append(AsBytes("1")));
  CAIRN_ASSERT_OK(writer->Finish());
  CAIRN_ASSERT_OK(storage_.Size("lease"));
  CAIRN_ASSERT_OK(storage_.ReadRange("lease", 0, {}));
  CAIRN_ASSERT_OK(storage_.List("roots/"));
  CAIRN_ASSERT_OK(storage_.Remove("lease"));
  using enum StorageOperation;
  EXPECT_THAT(storage_.Log(),
              ElementsAre(StorageCall{0, kPut, "lease"}, StorageCall{1, kPutIfAbsent, "roots/1"},
                          StorageCall{2, kCreate, "tables/a"}, StorageCall{3, kAppend, "tables/a"},
                          StorageCall{4, kFinish, "tables/a"}, StorageCall{5, kSize, "lease"},
                          StorageCall{6, kReadRange, "lease"}, StorageCall{7, kList, "roots/"},
                          StorageCall{8, kRemove, "lease"}));
  EXPECT_STREQ(StorageOperationName(kRemove), "Remove");
}

TEST_F(FaultyStorageTest, FailsOnlyTheCallOfThePlan) {
  storage_.SetPlan(FaultAt(1, StorageFault::kRefuse));
  CAIRN_EXPECT_OK(storage_.Put("a", {}));
  EXPECT_THAT(storage_.Put("b", {}), IsError(ErrorCode::kUnavailable, "Put: the request was"));
  CAIRN_EXPECT_OK(storage_.Put("c", {}));
  EXPECT_THAT(Names(), ElementsAre("a", "c"));
}

TEST_F(FaultyStorageTest, ALostResponseIsAnErrorAfterTheWrite) {
  FailEvery(StorageOperation::kPutIfAbsent, StorageFault::kLoseResponse);
  for (int i = 0; i < 2; ++i) {  // the conflict of the second call is lost, too
    EXPECT_THAT(storage_.PutIfAbsent("roots/1", AsBytes("1")),
                IsError(ErrorCode::kUnavailable, "memory:test/roots/1"));
    EXPECT_THAT(Names(), ElementsAre("roots/1"));
  }
}

TEST_F(FaultyStorageTest, RemovedObjectsExistAgainIfTheyAreRestored) {
  for (const char* name : {"a", "b", "c"}) CAIRN_ASSERT_OK(base_->Put(name, AsBytes(name)));
  CAIRN_ASSERT_OK(storage_.Remove("a"));  // before KeepRemoved
  storage_.KeepRemoved();
  for (const char* name : {"b", "c", "none"}) CAIRN_ASSERT_OK(storage_.Remove(name));
  CAIRN_ASSERT_OK(base_->Put("c", AsBytes("new")));
  CAIRN_ASSERT_OK(storage_.RestoreRemoved());
  EXPECT_THAT(Names(), ElementsAre("b", "c"));
  EXPECT_EQ(SizeOf("b"), 1u);
  EXPECT_EQ(SizeOf("c"), 3u);
}

TEST_F(FaultyStorageTest, ALostWriteSucceedsWithoutEffect) {
  CAIRN_ASSERT_OK(base_->Put("old", {}));
  storage_.SetPlan([](const StorageCall&) { return StorageFault::kLoseWrite; });
  CAIRN_EXPECT_OK(storage_.Put("lease", {}));
  CAIRN_EXPECT_OK(storage_.PutIfAbsent("roots/1", {}));
  CAIRN_EXPECT_OK(storage_.Remove("old"));
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, storage_.Create("tables/a"));
  CAIRN_EXPECT_OK(writer->Append(AsBytes("1")));
  CAIRN_EXPECT_OK(writer->Finish());
  EXPECT_THAT(Names(), ElementsAre("old"));
  EXPECT_THAT(storage_.List("").value(), ElementsAre("old"));  // not a write
}

TEST_F(FaultyStorageTest, AConflictIsReportedAfterThePut) {
  storage_.SetPlan([](const StorageCall&) { return StorageFault::kConflict; });
  EXPECT_THAT(storage_.PutIfAbsent("roots/1", {}), IsError(ErrorCode::kConflict, "roots/1"));
  EXPECT_THAT(Names(), ElementsAre("roots/1"));
  CAIRN_EXPECT_OK(storage_.Put("lease", {}));  // other operations have no conflicts
}

TEST_F(FaultyStorageTest, ATornUploadMissesItsEnd) {
  FailEvery(StorageOperation::kFinish, StorageFault::kTear);
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, storage_.Create("tables/a"));
  CAIRN_ASSERT_OK(writer->Append(AsBytes("01234567")));
  CAIRN_ASSERT_OK(writer->Append(AsBytes("0123")));
  EXPECT_THAT(writer->Finish(), IsError(ErrorCode::kUnavailable, "torn"));
  EXPECT_EQ(SizeOf("tables/a"), 10u);
}

TEST_F(FaultyStorageTest, AfterAPowerCutEveryOperationFails) {
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, storage_.Create("tables/a"));
  storage_.SetPlan(FaultAt(1, StorageFault::kPowerCut));
  EXPECT_THAT(storage_.PutIfAbsent("roots/1", {}), IsError(ErrorCode::kUnavailable, "power"));
  storage_.SetPlan({});
  EXPECT_THAT(storage_.Put("lease", {}), IsError(ErrorCode::kUnavailable, "power"));
  EXPECT_THAT(storage_.List(""), IsError(ErrorCode::kUnavailable, "power"));
  EXPECT_THAT(storage_.Size("lease"), IsError(ErrorCode::kUnavailable, "power"));
  EXPECT_THAT(storage_.ReadRange("lease", 0, {}), IsError(ErrorCode::kUnavailable, "power"));
  EXPECT_THAT(storage_.Remove("lease"), IsError(ErrorCode::kUnavailable, "power"));
  EXPECT_THAT(storage_.RemoveLeftovers(~0u), IsError(ErrorCode::kUnavailable, "power"));
  EXPECT_THAT(storage_.Create("tables/b"), IsError(ErrorCode::kUnavailable, "power"));
  EXPECT_THAT(writer->Finish(), IsError(ErrorCode::kUnavailable, "power"));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(FaultyStorageTest, ADelaySleepsAndThenPerforms) {
  storage_.SetDelay(std::chrono::milliseconds(30));
  FailEvery(StorageOperation::kPut, StorageFault::kDelay);
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_EXPECT_OK(storage_.Put("lease", {}));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(30));
  EXPECT_THAT(Names(), ElementsAre("lease"));
}

TEST_F(FaultyStorageTest, AStaleListingIsBehindPutsAndRemovals) {
  for (const char* name : {"roots/1", "roots/2", "roots/3", "pages/1"}) {
    CAIRN_ASSERT_OK(storage_.PutIfAbsent(name, {}));
  }
  CAIRN_ASSERT_OK(storage_.Remove("roots/1"));
  storage_.SetStaleListing(/*omitted_put_count=*/2, /*kept_removal_count=*/1);
  EXPECT_THAT(storage_.List("roots/").value(), UnorderedElementsAre("roots/1", "roots/2"));
  EXPECT_THAT(storage_.List("pages/").value(), IsEmpty());
  CAIRN_EXPECT_OK(storage_.Size("roots/3"));  // only listings are stale
  storage_.SetStaleListing(0, 0);
  EXPECT_THAT(storage_.List("").value(), UnorderedElementsAre("roots/2", "roots/3", "pages/1"));
}

}  // namespace
}  // namespace cairn::kv::internal
