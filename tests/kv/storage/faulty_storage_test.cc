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

using enum StorageOperation;

class FaultyStorageTest : public ::testing::Test {
 protected:
  /// What is in the storage below.
  std::vector<std::string> Names() { return base_->List("").value(); }
  uint64_t SizeOf(std::string_view name) { return base_->Size(name).value(); }

  const std::shared_ptr<MemoryStorage> base_ = std::make_shared<MemoryStorage>("test");
  FaultyStorage storage_{base_};
};

/// Writes "new" in pieces.
Result<void> Write(Storage& storage) {
  CAIRN_TRY_ASSIGN(const auto writer, storage.Create("new"));
  CAIRN_TRY(writer->Append(AsBytes("01234567")));
  CAIRN_TRY(writer->Append(AsBytes("0123")));
  return writer->Finish();
}

Result<void> Perform(Storage& storage, StorageOperation operation) {
  switch (operation) {
    case kPut:
      return storage.Put("new", AsBytes("1"));
    case kPutIfAbsent:
      return storage.PutIfAbsent("new", AsBytes("1"));
    case kFinish:
      return Write(storage);
    default:
      return storage.Remove("old");
  }
}

TEST_F(FaultyStorageTest, EachFaultDoesWhatItsNameStates) {
  using enum StorageFault;
  struct Case {
    StorageFault fault;
    StorageOperation operation;  // to whose calls it happens
    const char* error;           // "" if the call succeeds
    std::vector<std::string> names;
  };
  const Case cases[] = {
      {kRefuse, kPut, "Put: the request was", {"old"}},
      {kRefuse, kRemove, "Remove: the request was", {"old"}},
      {kLoseResponse, kPutIfAbsent, "the response was lost", {"new", "old"}},
      {kLoseResponse, kRemove, "the response was lost", {}},
      {kLoseWrite, kPut, "", {"old"}},
      {kLoseWrite, kPutIfAbsent, "", {"old"}},
      {kLoseWrite, kFinish, "", {"old"}},
      {kLoseWrite, kRemove, "", {"old"}},
      {StorageFault::kConflict, kPutIfAbsent, "the object exists", {"new", "old"}},
      {StorageFault::kConflict, kPut, "", {"new", "old"}},  // it has no conflicts
      {kTear, kFinish, "torn", {"new", "old"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(StorageFaultName(c.fault)) + StorageOperationName(c.operation));
    storage_.SetPlan({});
    CAIRN_ASSERT_OK(storage_.Put("old", {}));
    CAIRN_ASSERT_OK(storage_.Remove("new"));
    storage_.SetPlan([&](const StorageCall& call) {
      return call.operation == c.operation ? c.fault : StorageFault::kNone;
    });
    const Result<void> performed = Perform(storage_, c.operation);
    EXPECT_EQ(performed.has_value(), *c.error == 0);
    if (!performed) {
      EXPECT_THAT(performed, IsError(c.fault == StorageFault::kConflict ? ErrorCode::kConflict
                                                                        : ErrorCode::kUnavailable,
                                     c.error));
    }
    EXPECT_EQ(Names(), c.names);
  }
  EXPECT_EQ(SizeOf("new"), 10u) << "the end of the upload that was torn is missing";
}

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
  EXPECT_THAT(storage_.Log(),
              ElementsAre(StorageCall{0, kPut, "lease"}, StorageCall{1, kPutIfAbsent, "roots/1"},
                          StorageCall{2, kCreate, "tables/a"}, StorageCall{3, kAppend, "tables/a"},
                          StorageCall{4, kFinish, "tables/a"}, StorageCall{5, kSize, "lease"},
                          StorageCall{6, kReadRange, "lease"}, StorageCall{7, kList, "roots/"},
                          StorageCall{8, kRemove, "lease"}));
  EXPECT_STREQ(StorageOperationName(kRemove), "Remove");
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
