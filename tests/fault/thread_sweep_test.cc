// Goal: an operation on a store while the system starts no more threads, from the n-th on, succeeds
// on the threads that there are, or fails with an error value; no exception crosses the API, and no
// thread ends the process. Whatever happens, the store has the old or the new state.

#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "core/upkeep/scrub.h"
#include "kv/io/worker_pool.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/fault/sweep_operations.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace {

// The number of threads that can still be started.
std::atomic<int64_t> threads_left = INT64_MAX;
std::atomic<uint64_t> refused_threads = 0;

}  // namespace

// Instead of the function of the C library, also for std::thread.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left.fetch_sub(1) > 0) return create(thread, attributes, start, argument);
  ++refused_threads;
  return EAGAIN;
}

namespace cairn::testing {
namespace {

namespace fs = std::filesystem;
using core::CheckpointStore;
using core::TestTensor;

/// Lets `count` more threads be started while it exists.
class ThreadLimit {
 public:
  explicit ThreadLimit(int64_t count) {
    refused_threads = 0;
    threads_left = count;
  }
  ~ThreadLimit() { threads_left = INT64_MAX; }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;
};

/// Calls `perform` with a limit of 0, 1, 2, 3, 5, 7, 10, ... threads, until it reaches no limit, or
/// 50: some start threads for each of many requests. Each result must be success or
/// kResourceExhausted.
void SweepThreads(const std::function<Result<void>(int64_t limit)>& perform,
                  const std::function<void()>& check = {}) {
  uint64_t refused = 1;
  for (int64_t limit = 0; refused > 0 && limit < 50; limit += 1 + limit / 3) {
    SCOPED_TRACE(fmt::format("with {} threads", limit));
    Result<void> done;
    try {
      done = perform(limit);
    } catch (const std::exception& thrown) {
      ADD_FAILURE() << "an exception has crossed the API: " << thrown.what();
    }
    refused = refused_threads;
    if (!done) {
      EXPECT_EQ(done.error().code, ErrorCode::kResourceExhausted) << done.error().ToString();
    }
    if (check) check();
    if (::testing::Test::HasFailure()) return;
  }
}

class ThreadSweepTest : public ::testing::TestWithParam<SweptOperation> {};

TEST_P(ThreadSweepTest, WithoutMoreThreadsAnOperationSucceedsOrReturnsAnError) {
  const ScopedTempDir dir(fs::exists("/dev/shm") ? "/dev/shm" : "");
  RepeatedOperation repeated{.operation = GetParam(), .directory = dir.path()};
  CAIRN_ASSERT_OK(repeated.Prepare());
  SweepThreads(
      [&](int64_t limit) {
        repeated.StartAnew();
        const ThreadLimit threads(limit);
        return repeated.Perform(std::chrono::minutes(1)).performed;
      },
      [&] { CheckStore(repeated.StoreIn(), repeated.states); });
}

std::vector<SweptOperation> OperationsOfOneRank() {
  std::vector<SweptOperation> operations = SweptOperations();
  // The test itself starts a thread per rank.
  std::erase_if(operations,
                [](const SweptOperation& operation) { return operation.name.contains("ranks"); });
  return operations;
}

INSTANTIATE_TEST_SUITE_P(Operations, ThreadSweepTest, ::testing::ValuesIn(OperationsOfOneRank()));

/// A store with a step that is large enough for several threads.
class LargeStepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.io = {.direct = false, .uring = false, .block_bytes = 256 << 10, .queue_depth = 3};
    CAIRN_ASSERT_OK_AND_ASSIGN(
        store_, CheckpointStore::Open(dir_ / "store", kv::OpenMode::kWrite, options_));
    CAIRN_ASSERT_OK(store_->Save(1, State(), {.chunk_bytes = 256 << 10}));
    TestTensor changed = tensor_;
    for (size_t i = 0; i < changed.bytes.size(); i += 50'000) changed.bytes[i] ^= std::byte{1};
    core::StateDict state;
    state.root().Tensor("w", changed.view());
    CAIRN_ASSERT_OK(store_->Save(2, state, {.max_deltas = 4, .chunk_bytes = 256 << 10}));
    tensor_ = changed;
  }

  core::StateDict State() const {
    core::StateDict state;
    state.root().Tensor("w", tensor_.view());
    return state;
  }

  Result<void> LoadWith(int64_t limit, uint64_t step) {
    const ThreadLimit threads(limit);
    CAIRN_TRY_ASSIGN(const auto store,
                     CheckpointStore::Open(dir_ / "store", kv::OpenMode::kRead, options_));
    CAIRN_TRY_ASSIGN(const core::Contents contents, store->List(step));
    TestTensor loaded(tensor_.dtype, tensor_.shape, 9);
    const core::LoadRequest request = core::WholeRequest("w", loaded);
    CAIRN_TRY(store->Load(contents.step, {&request, 1}));
    EXPECT_TRUE(loaded.bytes == tensor_.bytes);
    const std::string name = "w";
    CAIRN_TRY(store->Map(contents.step, {&name, 1}));
    CAIRN_TRY(store->Verify(
        step, [](const kv::Damage& damage) { ADD_FAILURE() << damage.error.ToString(); }));
    return {};
  }

  ScopedTempDir dir_{fs::exists("/dev/shm") ? "/dev/shm" : ""};
  kv::StoreOptions options_;
  TestTensor tensor_{core::DType::kInt8, {17 << 20}};
  std::unique_ptr<CheckpointStore> store_;
};

TEST_F(LargeStepTest, IsReadByTheThreadsThatThereAre) {
  SweepThreads([&](int64_t limit) { return LoadWith(limit, 2); });
}

TEST_F(LargeStepTest, IsSavedInTheBackgroundOrReturnsAnError) {
  uint64_t step = 10;
  SweepThreads(
      [&](int64_t limit) -> Result<void> {
        core::AsyncSaver saver(store_.get());
        const ThreadLimit threads(limit);
        CAIRN_TRY_ASSIGN(const core::SaveHandle handle, saver.Save(++step, State(), {}));
        CAIRN_TRY(handle.Wait());
        return {};
      },
      [&] { CAIRN_EXPECT_OK(LoadWith(INT64_MAX, store_->StepNumbers()->back())); });
}

TEST_F(LargeStepTest, IsCompressedAndScrubbedByTheThreadsThatThereAre) {
  SweepThreads([&](int64_t limit) -> Result<void> {
    const ThreadLimit threads(limit);
    CAIRN_TRY(store_->Compact({.max_dead = 1}, /*compress=*/true));
    CAIRN_TRY_ASSIGN(const auto scrub, core::BackgroundScrub::Start(
                                           *store_, {.every = std::chrono::milliseconds::max()}));
    while (scrub->state().passes == 0) {
      if (const auto error = scrub->state().error) return Fail(*error);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  });
}

TEST(WorkerPoolTest, AnExceptionReachesTheCallerOnceAllThreadsHaveStopped) {
  kv::WorkerPool pool(4);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> running = 0;
    EXPECT_THROW(pool.Run(1000,
                          [&](size_t i, size_t) {
                            ++running;
                            --running;
                            if (i % 7 == 3) throw std::bad_alloc();
                          }),
                 std::bad_alloc);
    EXPECT_EQ(running, 0);
  }
  std::atomic<size_t> sum = 0;
  pool.Run(100, [&](size_t i, size_t) { sum += i; });
  EXPECT_EQ(sum, 4950u);
}

}  // namespace
}  // namespace cairn::testing
