// The contract of every storage of kv/, names, and addresses.

#include "kv/storage/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
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

using kv::OpenStorage;
using kv::Storage;
using kv::internal::DirectoryStorage;
using kv::internal::FaultyStorage;
using kv::internal::IsObjectName;
using kv::internal::IsObjectPrefix;
using kv::internal::MemoryStorage;

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
