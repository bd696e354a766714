// The block pool, and the I/O queue with io_uring and with threads.

#include "kv/io/internal/block_io.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kv/io/file_descriptor.h"
#include "tests/kv/sample_step.h"
#include "tests/support/forked_child.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv::internal {
namespace {

using cairn::testing::ScopedTempDir;
using testing::RandomBytes;

TEST(BlockPoolTest, HandsOutAlignedBlocksUpToItsCount) {
  for (const uint64_t block_bytes : {uint64_t{4096}, uint64_t{5000}, uint64_t{4} << 20}) {
    BlockPool pool(block_bytes, 3);
    EXPECT_GE(pool.block_bytes(), block_bytes);
    EXPECT_EQ(pool.block_bytes() % 4096, 0u);
    std::set<std::byte*> blocks;
    for (int i = 0; i < 3; ++i) {
      std::byte* block = pool.TryTake();
      ASSERT_NE(block, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 4096, 0u);
      blocks.insert(block);
    }
    EXPECT_EQ(blocks.size(), 3u);
    EXPECT_EQ(pool.TryTake(), nullptr);
    pool.Give(*blocks.begin());
    EXPECT_EQ(pool.TryTake(), *blocks.begin());
    for (std::byte* block : blocks) pool.Give(block);
  }
}

// glibc before 2.38 does not reuse freed memory for aligned blocks, so its heap would grow with
// each pool.
TEST(BlockPoolTest, BlocksAreNotInTheHeap) {
  constexpr uint64_t kBlockBytes = 4 << 20;
  // As after a large array was freed.
  if (::mallopt(M_MMAP_THRESHOLD, 32 << 20) != 1) GTEST_SKIP() << "a sanitizer replaces the heap";
  const size_t before_bytes = ::mallinfo2().arena;
  BlockPool pool(kBlockBytes, 8);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 8; ++i) {
    CAIRN_ASSERT_OK_AND_ASSIGN(std::byte* const block, pool.Take());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % (2 << 20), 0u);
    block[kBlockBytes - 1] = std::byte{1};
    blocks.push_back(block);
  }
  EXPECT_LT(::mallinfo2().arena, before_bytes + kBlockBytes);
  for (std::byte* const block : blocks) pool.Give(block);
}

TEST(BlockPoolTest, TakeWaitsUntilABlockIsGiven) {
  BlockPool pool(4096, 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(std::byte* const block, pool.Take());
  std::byte* taken = nullptr;
  std::thread waiter([&] { taken = pool.Take().value(); });
  pool.Give(block);
  waiter.join();
  EXPECT_EQ(taken, block);
  pool.Give(taken);
}

class IoQueueTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    queue_ = MakeFileQueue(GetParam(), kDepth);
    if (GetParam() && std::string(queue_->name()) != "io_uring") {
      GTEST_SKIP() << "this kernel does not allow io_uring";
    }
    ASSERT_STREQ(queue_->name(), GetParam() ? "io_uring" : "threads");
    file_ = FileDescriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(file_.is_open());
  }

  static constexpr uint32_t kDepth = 4;
  ScopedTempDir dir_;
  const std::string path_ = dir_ / "file";
  FileDescriptor file_;
  std::unique_ptr<IoQueue> queue_;
};

TEST_P(IoQueueTest, WritesAndReadsBackWithManyInFlight) {
  constexpr uint64_t kPieceBytes = 10'000;
  constexpr uint64_t kPieceCount = 37;
  std::vector<std::byte> source = RandomBytes(1, kPieceBytes * kPieceCount);
  std::vector<std::byte> target(source.size());
  for (const bool write : {true, false}) {
    std::vector<std::byte>& memory = write ? source : target;
    std::set<uint64_t> tags;
    const auto finish_one = [&] {
      const auto done = queue_->Wait();
      ASSERT_TRUE(cairn::testing::IsOk(done));
      EXPECT_EQ(done->error_number, 0);
      EXPECT_EQ(done->done_bytes, kPieceBytes);
      EXPECT_TRUE(tags.insert(done->request.tag).second);
    };
    for (uint64_t i = 0; i < kPieceCount; ++i) {
      if (queue_->in_flight() == queue_->depth()) finish_one();
      CAIRN_ASSERT_OK(queue_->Submit({.fd = file_.get(),
                                      .write = write,
                                      .data = memory.data() + i * kPieceBytes,
                                      .length_bytes = kPieceBytes,
                                      .offset_bytes = i * kPieceBytes,
                                      .tag = i}));
    }
    while (queue_->in_flight() > 0) finish_one();
    EXPECT_EQ(tags.size(), kPieceCount);
  }
  EXPECT_EQ(source, target);
}

TEST_P(IoQueueTest, ReadAtTheEndOfTheFileIsShort) {
  const std::vector<std::byte> content = RandomBytes(2, 5'000);
  ASSERT_EQ(::pwrite(file_.get(), content.data(), content.size(), 0), 5'000);
  alignas(4096) static std::byte target[16'384];
  for (const int flags : {0, O_DIRECT}) {
    const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | flags));
    if (!file.is_open()) GTEST_SKIP() << "no O_DIRECT in " << path_;
    for (const uint64_t offset_bytes : {0, 4'096, 8'192}) {
      CAIRN_ASSERT_OK(queue_->Submit({.fd = file.get(),
                                      .data = target,
                                      .length_bytes = sizeof(target),
                                      .offset_bytes = offset_bytes}));
      CAIRN_ASSERT_OK_AND_ASSIGN(const IoCompletion done, queue_->Wait());
      EXPECT_EQ(done.error_number, 0);
      const uint64_t begin_bytes = std::min<uint64_t>(offset_bytes, content.size());
      EXPECT_EQ(done.done_bytes, content.size() - begin_bytes);
      EXPECT_TRUE(std::ranges::equal(std::span(content).subspan(begin_bytes),
                                     std::span(target).first(done.done_bytes)));
    }
  }
}

TEST_P(IoQueueTest, ErrorsAreReturnedWithTheirRequest) {
  std::vector<std::byte> data(100);
  CAIRN_ASSERT_OK(queue_->Submit({.fd = -1, .data = data.data(), .length_bytes = 100, .tag = 42}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const IoCompletion bad, queue_->Wait());
  EXPECT_EQ(bad.error_number, EBADF);
  EXPECT_EQ(bad.request.tag, 42u);
  // The queue continues to work.
  CAIRN_ASSERT_OK(
      queue_->Submit({.fd = file_.get(), .write = true, .data = data.data(), .length_bytes = 100}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const IoCompletion good, queue_->Wait());
  EXPECT_EQ(good.done_bytes, 100u);
  const FileDescriptor read_only(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  CAIRN_ASSERT_OK(queue_->Submit(
      {.fd = read_only.get(), .write = true, .data = data.data(), .length_bytes = 100}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const IoCompletion refused, queue_->Wait());
  EXPECT_EQ(refused.error_number, EBADF);
}

TEST_P(IoQueueTest, ShortReadsAreContinued) {
  if (!GetParam())
    GTEST_SKIP() << "a pipe stands in for a slow file, and pread does not support pipes";
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor read_end(ends[0]), write_end(ends[1]);
  std::byte target[4];
  CAIRN_EXPECT_OK(queue_->Submit({.fd = read_end.get(), .data = target, .length_bytes = 4}));
  std::thread writer([&] {
    for (const char c : {'a', 'b', 'c', 'd'}) {
      EXPECT_EQ(::write(write_end.get(), &c, 1), 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  const auto done = queue_->Wait();
  writer.join();
  ASSERT_TRUE(cairn::testing::IsOk(done));
  EXPECT_EQ(done->done_bytes, 4u);
  EXPECT_EQ(target[3], std::byte{'d'});
}

TEST_P(IoQueueTest, DestructionWaitsForWhatIsInFlight) {
  std::vector<std::byte> source = RandomBytes(4, 4 << 20);
  for (uint64_t i = 0; i < kDepth; ++i) {
    CAIRN_ASSERT_OK(queue_->Submit({.fd = file_.get(),
                                    .write = true,
                                    .data = source.data() + (i << 20),
                                    .length_bytes = 1 << 20,
                                    .offset_bytes = i << 20}));
  }
  queue_.reset();
  std::vector<std::byte> target(source.size());
  ASSERT_EQ(::pread(file_.get(), target.data(), target.size(), 0),
            static_cast<ssize_t>(target.size()));
  EXPECT_EQ(target, source);
}

TEST_P(IoQueueTest, OnlyAnIdleRingIsKeptForItsNextUser) {
  FileQueues queues(/*uring=*/GetParam());
  IoQueue* const first = queues.Give(queues.Take(kDepth));
  EXPECT_EQ(first != nullptr, GetParam());

  std::unique_ptr<IoQueue> other = queues.Take(kDepth + 1);
  EXPECT_EQ(other->depth(), kDepth + 1);
  EXPECT_NE(other.get(), first);

  std::unique_ptr<IoQueue> again = queues.Take(kDepth);
  if (first != nullptr) EXPECT_EQ(again.get(), first);
  std::vector<std::byte> target(16);
  CAIRN_ASSERT_OK(
      again->Submit({.fd = file_.get(), .data = target.data(), .length_bytes = target.size()}));
  EXPECT_EQ(queues.Give(std::move(again)), nullptr);
  EXPECT_EQ(queues.Give(nullptr), nullptr);
}

TEST_P(IoQueueTest, ForkedChildDoesNotUseTheRingsOfItsParent) {
#ifdef __SANITIZE_THREAD__
  if (!GetParam()) GTEST_SKIP() << "TSan ends a forked child that starts threads (dup thread)";
#endif
  FileQueues queues(/*uring=*/GetParam());
  const IoQueue* const kept = queues.Give(queues.Take(kDepth));
  cairn::testing::ForkedChild child([&] { return queues.Give(queues.Take(kDepth)) == nullptr; });
  EXPECT_EQ(child.Wait(), 0);
  if (kept != nullptr) EXPECT_EQ(queues.Take(kDepth).get(), kept);
}

INSTANTIATE_TEST_SUITE_P(Both, IoQueueTest, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "io_uring" : "threads"; });

}  // namespace
}  // namespace cairn::kv::internal
