// The contract of every storage of kv/, names, and addresses.

#include "kv/storage/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <thread>

#include "kv/storage/files/internal/directory_storage.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/open/open_storage.h"
#include "tests/kv/storage/storage_contract.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test
using kv::OpenStorage;
using kv::Storage;

OpenSameStorage MakeDirectory() {
  const auto dir = std::make_shared<ScopedTempDir>();
  return [dir] { return std::make_shared<DirectoryStorage>(*dir / "store"); };
}
OpenSameStorage MakeMemory() {
  const auto storage = std::make_shared<MemoryStorage>("test");
  return [storage] { return storage; };
}
OpenSameStorage MakeFaultyMemory() {
  const auto base = std::make_shared<MemoryStorage>("test");
  return [base] { return std::make_shared<FaultyStorage>(base); };
}

INSTANTIATE_TEST_SUITE_P(Directory, StorageContractTest,
                         ::testing::Values(StorageParam{&MakeDirectory}));
INSTANTIATE_TEST_SUITE_P(Memory, StorageContractTest, ::testing::Values(StorageParam{&MakeMemory}));
INSTANTIATE_TEST_SUITE_P(WithoutFaults, StorageContractTest,
                         ::testing::Values(StorageParam{&MakeFaultyMemory}));

TEST(ObjectNameTest, AcceptsNamesAndRefusesPathsThatLeaveTheStorage) {
  for (const char* name :
       {"a", "CAIRN", ".metadata", "roots/ffff.root", "a/b/c", "-", "_x", "a..b", "a."}) {
    EXPECT_TRUE(IsObjectName(name)) << name;
    EXPECT_TRUE(IsObjectPrefix(std::string(name) + "/")) << name;
    EXPECT_FALSE(IsObjectPrefix(name)) << name;
  }
  for (const char* name : {"", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/.b", ".tmp",
                           "a/.metadata", "a b", "a\nb", "a:b", "a\\b", "lost+found", "\xc3\xa4"}) {
    EXPECT_FALSE(IsObjectName(name)) << name;
  }
  EXPECT_FALSE(IsObjectName(std::string_view("a\0b", 3)));
  EXPECT_TRUE(IsObjectPrefix(""));
  EXPECT_FALSE(IsObjectPrefix("/"));
  EXPECT_FALSE(IsObjectPrefix("a//"));
}

TEST(ObjectNameTest, NamesHaveFixedLengths) {
  const ObjectId id{.epoch = 0x12, .id = 0xabc, .id_tail = 0xd};

  EXPECT_EQ(ObjectName(ObjectKind::kSegment, id), "segments/00000012-0000000000000abc0000000d.seg");
  EXPECT_EQ(ObjectName(ObjectKind::kTable, id), "tables/00000012-0000000000000abc0000000d.sst");
  EXPECT_EQ(ObjectName(ObjectKind::kPage, id), "pages/00000012-0000000000000abc0000000d.steps");
  EXPECT_EQ(RootName(0), "roots/ffffffffffffffff.root");
  EXPECT_EQ(RootName(17), "roots/ffffffffffffffee.root");
}

TEST(ObjectNameTest, NamesAreParsed) {
  for (const ObjectKind kind : {ObjectKind::kSegment, ObjectKind::kTable, ObjectKind::kPage}) {
    for (const ObjectId id : {ObjectId{}, ObjectId{~0u, ~0ull, ~0u}, NewObjectId(7)}) {
      const std::string name = ObjectName(kind, id);
      EXPECT_TRUE(name.starts_with(ObjectFolder(kind)));
      EXPECT_EQ(ParseObjectName(name), (ParsedObjectName{kind, id}));
    }
  }
  for (const uint64_t number : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    EXPECT_EQ(ParseRootName(RootName(number)), number);
  }
}

TEST(ObjectNameTest, NewerRootsSortFirst) { EXPECT_LT(RootName(256), RootName(255)); }

TEST(ObjectNameTest, OtherNamesAreNotParsed) {
  for (const char* name :
       {"", "segments/", "segments/.seg", "CAIRN", "tables/00000012-0000000000000abc00000000.seg",
        "segments/00000012-0000000000000ABC00000000.seg",
        "segments/00000012-0000000000000abc00000000.seg.tmp",
        "segments/00000012_0000000000000abc00000000.seg", "segments/12-abc.seg",
        "segments/00000012-0000000000000abc.seg", "segments/00000012-0000000000000abc000000000.seg",
        "segments/-0000012-0000000000000abc00000000.seg",
        "segments/0x000012-0000000000000abc00000000.seg",
        "x/segments/00000012-0000000000000abc00000000.seg"}) {
    EXPECT_FALSE(ParseObjectName(name).has_value()) << name;
  }
  for (const char* name : {"", "roots/", "roots/.root", "roots/ff.root", "hint",
                           "roots/FFFFFFFFFFFFFFFF.root", "roots/ffffffffffffffff.root2",
                           "roots/-fffffffffffffff.root", "roots/fffffffffffffffff.root"}) {
    EXPECT_FALSE(ParseRootName(name).has_value()) << name;
  }
}

TEST(ObjectNameTest, NewIdsDiffer) {
  std::set<ObjectId> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(NewObjectId(3));

  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_EQ(ids.begin()->epoch, 3u);
}

TEST(OpenStorageTest, OpensPathsAndCreatesNothing) {
  const ScopedTempDir dir;
  for (const std::string& address : {dir / "store", "file:" + dir / "store", dir / "store//"}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Storage> storage, OpenStorage(address));
    EXPECT_EQ(storage->address(), dir / "store");
    EXPECT_NE(storage->local_files(), nullptr);
    CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, storage->List(""));
    EXPECT_TRUE(names.empty());
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(OpenStorageTest, RefusesATilde) {
  for (const char* address : {"~", "~/store", "file:~/store", "~other/store"}) {
    EXPECT_THAT(OpenStorage(address),
                IsError(ErrorCode::kInvalidArgument, "only a shell replaces '~'"));
  }
  CAIRN_EXPECT_OK(OpenStorage("./~"));
}

TEST(OpenStorageTest, SharesMemoryByItsName) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Storage> a, OpenStorage("memory:share-a"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Storage> same, OpenStorage("memory:share-a"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Storage> b, OpenStorage("memory:share-b"));
  CAIRN_ASSERT_OK(a->Put("CAIRN", std::array<std::byte, 3>{}));
  EXPECT_EQ(a->address(), "memory:share-a");
  EXPECT_EQ(same->Size("CAIRN").value(), 3u);
  EXPECT_THAT(b->Size("CAIRN"), IsError(ErrorCode::kNotFound, "memory:share-b/CAIRN"));
}

TEST(OpenStorageTest, RefusesOtherAddresses) {
  for (const char* address :
       {"s3:bucket/run", "s3://", "rados:pool", "", "file:", "memory:", "a:b", ":", ":a"}) {
    EXPECT_THAT(OpenStorage(address), IsError(ErrorCode::kInvalidArgument, address));
  }
  CAIRN_EXPECT_OK(OpenStorage("./a:b"));
}

TEST(CheckStoredTest, ReportsLostAndIncompleteObjects) {
  MemoryStorage storage("test");
  EXPECT_THAT(CheckStored(storage, "tables/a", 2), IsError(ErrorCode::kUnavailable, "is absent"));
  CAIRN_ASSERT_OK(storage.Put("tables/a", std::array<std::byte, 3>{}));
  EXPECT_THAT(CheckStored(storage, "tables/a", 2),
              IsError(ErrorCode::kUnavailable, "a write of 2 bytes, but the object has 3 bytes"));
  CAIRN_EXPECT_OK(CheckStored(storage, "tables/a", 3));
}

TEST(MemoryStorageTest, AwaitChangeReturnsAfterAPut) {
  MemoryStorage storage("test");
  std::jthread writer([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) CAIRN_EXPECT_OK(storage.Put("hint", {}));
  });
  const auto begin = std::chrono::steady_clock::now();
  storage.AwaitChange("", std::chrono::seconds(60));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(MemoryStorageTest, CreateRefusesAnExistingObject) {
  MemoryStorage storage("test");
  CAIRN_ASSERT_OK(storage.Put("tables/a", {}));
  EXPECT_THAT(storage.Create("tables/a"), IsError(ErrorCode::kConflict, "memory:test/tables/a"));
}

}  // namespace
}  // namespace cairn::testing
