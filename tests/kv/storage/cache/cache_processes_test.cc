// Goal: processes and threads share the reader cache, and none of them can break it for the others:
// not by a kill, and not on a full disk.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <list>
#include <thread>

#include "tests/kv/storage/cache/cached_storage_fixture.h"
#include "tests/support/forked_child.h"
#include "tests/support/seeded_random.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::ForkedChild;
using ::testing::IsEmpty;

using CacheProcessesTest = CachedStorageTest;

TEST_F(CacheProcessesTest, AFullDiskIsBypassed) {
  const Bytes bytes = PutSegment(1, 1 << 20);
  const Bytes small = PutSegment(2, 10'000);
  ForkedChild child([&] {
    // Writes beyond 256 KiB of a file fail with EFBIG.
    const struct rlimit limit{.rlim_cur = 1 << 18, .rlim_max = 1 << 18};
    if (::signal(SIGXFSZ, SIG_IGN) == SIG_ERR || ::setrlimit(RLIMIT_FSIZE, &limit) != 0)
      return false;
    const auto storage = Open();
    // The first 200,000 bytes are in the cache. After the first failure, nothing is added.
    return ReadsAll(*storage, 1, bytes, 100'000) && ReadsAll(*storage, 1, bytes, 100'000) &&
           ReadsAll(*storage, 2, small, 10'000) && ReadsAll(*storage, 2, small, 10'000) &&
           remote_->Calls().size() == 11 + 9 + 1 + 1;
  });
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_TRUE(ReadsAll(*Open(), 1, bytes, 70'000));
}

TEST_F(CacheProcessesTest, ProcessesShareTheCache) {
  const Bytes bytes = PutSegment(1, 3'000'000);
  std::list<ForkedChild> children;
  for (uint64_t process = 0; process < 4; ++process) {
    children.emplace_back([&] {
      const auto storage = Open();
      bool fine = true;
      for (int i = 0; i < 5; ++i)
        fine = fine && ReadsAll(*storage, 1, bytes, 10'000 + process * 777);
      return fine;
    });
  }
  for (ForkedChild& child : children) EXPECT_EQ(child.Wait(), 0);
  remote_->Restart();
  EXPECT_TRUE(ReadsAll(*Open(), 1, bytes, 1 << 20));
  EXPECT_THAT(remote_->Calls(), IsEmpty());
}

TEST_F(CacheProcessesTest, AKillDuringAFillLeavesACacheThatIsUsedAgain) {
  const Bytes bytes = PutSegment(1, 16 << 20);
  cairn::testing::SeededRandom random;
  for (int kill = 0; kill < 20; ++kill) {
    ForkedChild child([&] {
      while (true) {
        (void)ReadsAll(*Open(), 1, bytes, 12'345 + static_cast<uint64_t>(kill) * 1'000);
      }
      return true;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random.Between(0, 20'000)));
    ASSERT_EQ(::kill(child.pid(), SIGKILL), 0);
    ASSERT_TRUE(WIFSIGNALED(child.Wait()));
    ASSERT_TRUE(ReadsAll(*Open(), 1, bytes, 1 << 16)) << kill;
    if (kill % 2 == 1) {  // begin with an empty cache again
      for (const std::string& path : Files("")) std::filesystem::remove(path);
    }
  }
  EXPECT_TRUE(ReadsAll(*Open(), 1, bytes, 1 << 20));
  remote_->Restart();
  EXPECT_TRUE(ReadsAll(*Open(), 1, bytes, 1 << 20));
  EXPECT_THAT(remote_->Calls(), IsEmpty());
}

TEST_F(CacheProcessesTest, ThreadsShareAStorage) {
  std::vector<Bytes> objects;
  for (uint64_t id = 0; id < 8; ++id) objects.push_back(PutSegment(id, 300'000));
  const auto storage = Open(1 << 20);  // evicts all the time
  std::vector<std::jthread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < 40; ++i) {
        const uint64_t id = (i * 3 + thread) % objects.size();
        EXPECT_TRUE(ReadsAll(*storage, id, objects[id], 30'000 + thread * 1'001));
      }
    });
  }
  threads.clear();
  EXPECT_LT(remote_->Calls().size(), 4u * 40 * 10) << "nothing was read from the cache";
}

}  // namespace
}  // namespace cairn::kv::internal
