// Goal: a store that is read through the reader cache contains what the store in the storage does,
// also if it was created again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <filesystem>
#include <iterator>

#include "kv/storage/cache/internal/cached_storage.h"
#include "kv/storage/files/internal/directory_storage.h"
#include "kv/store.h"
#include "tests/kv/storage/cache/cached_storage_fixture.h"
#include "tests/kv/store_checks.h"
#include "tests/support/fake_s3.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;
using kv::testing::ExpectSample;
using kv::testing::MakeSample;
using kv::testing::ReadLatest;
using kv::testing::RemoveObjects;
using kv::testing::SampleStep;
using kv::testing::SaveSample;
using ::testing::Each;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

namespace fs = std::filesystem;

using CachedStoreTest = CachedStorageTest;

TEST_F(CachedStoreTest, SecondLoadReadsOnlyTheIdentityAndTheRoots) {
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(remote_, OpenMode::kWrite));
    for (uint64_t step = 1; step <= 3; ++step)
      CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step)));
  }
  for (int load = 0; load < 3; ++load) {
    remote_->Restart();
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(Open()));
    ExpectSample(*snapshot, MakeSample(3));
    if (load == 0) continue;
    EXPECT_THAT(remote_->Calls(),
                Each(MatchesRegex("[1-4] (Read CAIRN|ReadRange hint|List roots/|Read roots/.*)")));
    EXPECT_THAT(remote_->Calls(), SizeIs(4));  // the hint and the listing at the same time
  }
}

TEST_F(CachedStoreTest, AStoreThatWasCreatedAgainIsNotMistakenForTheOldOne) {
  const auto load = [&](const SampleStep& expected) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, ReadLatest(Open()));
    ExpectSample(*snapshot, expected);
  };
  // The roots of all stores have the same numbers, except that the last one has fewer.
  for (uint64_t version = 0; version < 4; ++version) {
    RemoveObjects(*base_);
    CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, Store::Open(remote_, OpenMode::kWrite));
    for (uint64_t step = version == 3 ? 2 : 1; step <= 2; ++step) {
      CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(step, version)));
    }
    writer.reset();
    load(MakeSample(2, version));
    load(MakeSample(2, version));
  }
}

TEST_F(CachedStoreTest, AReaderOfAStoreThatWasRemovedLearnsItWhenItReads) {
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(remote_, OpenMode::kWrite));
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1)));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto first, Store::Open(Open(), OpenMode::kRead));
  RemoveObjects(*base_);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto second, Store::Open(Open(), OpenMode::kRead));
  EXPECT_THAT(second->Latest(), IsError(ErrorCode::kNotFound, "there is no store here"));
  EXPECT_EQ(second->uuid(), std::string(32, '0'));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(remote_, OpenMode::kWrite));
  CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(9)));
  EXPECT_EQ(second->uuid(), writer->uuid());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, second->Latest());
  ExpectSample(*snapshot, MakeSample(9));
}

class ReaderCacheTest : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("CAIRN_CACHE");
    ::unsetenv("CAIRN_CACHE_BYTES");
  }
  const ScopedTempDir dir_;
  const std::shared_ptr<Storage> memory_ = std::make_shared<MemoryStorage>("test");
};

TEST(ReaderCacheStoragesTest, BucketsWithTheSameNameOnTwoServersAreKeptApart) {
  const cairn::testing::ScopedTempDir dir;
  const cairn::testing::FakeS3 servers[2];
  const std::string name = ObjectName(ObjectKind::kSegment, {1, 7});
  std::array<std::vector<std::byte>, 2> bytes;
  for (size_t i = 0; i < 2; ++i) {
    bytes[i] = kv::testing::RandomBytes(i, 10'000);
    CAIRN_ASSERT_OK(cairn::testing::OpenBucket(servers[i])->Put(name, bytes[i]));
  }
  for (int load = 0; load < 2; ++load) {
    for (size_t i = 0; i < 2; ++i) {
      CachedStorage storage(cairn::testing::OpenBucket(servers[i]),
                            CacheOptions{.directory = dir.path()});
      std::vector<std::byte> target(bytes[i].size());
      CAIRN_ASSERT_OK(storage.ReadRange(name, 0, target));
      EXPECT_TRUE(target == bytes[i]) << i;
      EXPECT_THAT(servers[i].Calls(), SizeIs(2)) << "the put, and the first read";
    }
  }
}

TEST_F(ReaderCacheTest, TheEnvironmentEnablesIt) {
  CAIRN_ASSERT_OK_AND_ASSIGN(auto storage, WithReaderCache(memory_));
  EXPECT_EQ(storage, memory_);
  ::setenv("CAIRN_CACHE", dir_.path().c_str(), 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(storage, WithReaderCache(memory_));
  EXPECT_NE(dynamic_cast<CachedStorage*>(storage.get()), nullptr);
  const std::shared_ptr<Storage> files = std::make_shared<DirectoryStorage>(dir_ / "store");
  CAIRN_ASSERT_OK_AND_ASSIGN(storage, WithReaderCache(files));
  EXPECT_EQ(storage, files);
}

TEST_F(ReaderCacheTest, RefusesLimitsThatAreNoNumbersOrTooSmall) {
  ::setenv("CAIRN_CACHE", dir_.path().c_str(), 1);
  for (const char* text : {"1048575", "-1", "1G", "x", "9223372036854775808"}) {
    ::setenv("CAIRN_CACHE_BYTES", text, 1);
    EXPECT_THAT(WithReaderCache(memory_), IsError(ErrorCode::kInvalidArgument, text));
  }
  ::setenv("CAIRN_CACHE_BYTES", "1048576", 1);
  CAIRN_EXPECT_OK(WithReaderCache(memory_));
}

TEST_F(ReaderCacheTest, AStoreInMemoryIsReadThroughItUnlessTheCallerRefuses) {
  ::setenv("CAIRN_CACHE", dir_.path().c_str(), 1);
  const std::string address = "memory:reader-cache";
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, Store::Open(address, OpenMode::kWrite));
    CAIRN_ASSERT_OK(SaveSample(*writer, MakeSample(1)));
  }
  const auto load = [&](bool reader_cache) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot,
                               ReadLatest(address, {.reader_cache = reader_cache}));
    ExpectSample(*snapshot, MakeSample(1));
  };
  const auto cached = [&] {
    return std::distance(fs::recursive_directory_iterator(dir_.path()), {});
  };
  const auto before = cached();
  load(false);
  EXPECT_EQ(cached(), before);
  load(true);
  EXPECT_GT(cached(), before);
}

}  // namespace
}  // namespace cairn::kv::internal
