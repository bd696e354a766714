// Goal: if an allocation fails on a thread that an operation on a store has started, the operation
// succeeds, returns an error value, or throws std::bad_alloc to its caller. No thread ends the
// process, no wait lasts forever, and the store has the old or the new state.

#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "core/checkpoint_store.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/fault/sweep_operations.h"
#include "tests/support/fake_s3.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace {

// Set on the thread that calls the operation: the threads that it and its threads start are those
// of the operation.
thread_local bool marks_threads = false;
thread_local bool is_of_operation = false;

// How many allocations of such threads succeed before one fails, and whether all later ones fail.
std::atomic<int64_t> allocations_left = INT64_MAX;
std::atomic<bool> fails_all = false;

struct ThreadStart {
  void* (*start)(void*);
  void* argument;
};

void* RunMarked(void* given) {
  const ThreadStart begin = *static_cast<ThreadStart*>(given);
  std::free(given);
  marks_threads = true;
  is_of_operation = true;
  return begin.start(begin.argument);
}

void* Allocate(size_t bytes, size_t alignment) {
  if (is_of_operation) {
    const int64_t left = allocations_left.fetch_sub(1);
    if (left == 0 || (left < 0 && fails_all)) throw std::bad_alloc();
  }
  const size_t rounded = std::max<size_t>(1, bytes + alignment - 1) / alignment * alignment;
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(bytes)
                           : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Instead of the function of the C library, also for std::thread.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  static const auto create =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (!marks_threads) return create(thread, attributes, start, argument);
  auto* const begin = static_cast<ThreadStart*>(std::malloc(sizeof(ThreadStart)));
  *begin = {start, argument};
  const int status = create(thread, attributes, &RunMarked, begin);
  if (status != 0) std::free(begin);
  return status;
}

void* operator new(size_t bytes) { return Allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {  // AddressSanitizer has its own
  try {
    return Allocate(bytes, 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace cairn::testing {
namespace {

namespace fs = std::filesystem;
using core::CheckpointStore;
using core::TestTensor;

/// Lets the allocation number `n` (from 0) of the operation's threads fail while it exists, or all
/// from that number on.
class FailingAllocation {
 public:
  FailingAllocation(int64_t n, bool all) {
    fails_all = all;
    allocations_left = n;
    marks_threads = true;
  }
  ~FailingAllocation() {
    marks_threads = false;
    allocations_left = INT64_MAX;
  }
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;

  bool happened() const { return allocations_left < 0; }
};

/// Calls `perform` with a failure of allocation 0, 1, 2, ..., in growing steps, until it makes
/// fewer allocations, and `check` after each with whether it reported success. The calling thread
/// takes part in the work: one call in which the others did not get as far as allocation `n` does
/// not show that there is none.
void SweepAllocations(const std::function<Result<void>()>& perform,
                      const std::function<void(bool succeeded)>& check) {
  constexpr int kCallsWithoutFailure = 20;
  for (const bool all : {false, true}) {
    int without = 0;
    for (int64_t n = 0; without < kCallsWithoutFailure;) {
      SCOPED_TRACE(fmt::format("allocation {}{}", n, all ? " and all later ones" : ""));
      Result<void> done;
      bool happened = false;
      {
        const FailingAllocation failing(n, all);
        try {
          done = perform();
        } catch (const std::bad_alloc&) {
          done = Fail(Error{.code = ErrorCode::kResourceExhausted});
        }
        happened = failing.happened();
      }
      if (!done) {
        EXPECT_EQ(done.error().code, ErrorCode::kResourceExhausted) << done.error().ToString();
      }
      check(done.has_value());
      if (::testing::Test::HasFailure()) return;
      without = happened ? 0 : without + 1;
      ASSERT_TRUE(without < kCallsWithoutFailure || n > 0) << "no thread allocates";
      if (happened) n += 1 + n / 4;
    }
  }
}

class MemorySweepTest : public ::testing::TestWithParam<SweptOperation> {};

TEST_P(MemorySweepTest, AFailedAllocationOfAThreadIsAnErrorOfTheOperation) {
  const ScopedTempDir dir(fs::exists("/dev/shm") ? "/dev/shm" : "");
  RepeatedOperation repeated{.operation = GetParam(), .directory = dir.path()};
  CAIRN_ASSERT_OK(repeated.Prepare());
  repeated.StartAnew();
  SweepAllocations([&] { return repeated.Perform(std::chrono::minutes(1)).performed; },
                   [&](bool succeeded) {
                     CheckStore(repeated.StoreIn(),
                                succeeded ? std::vector{repeated.states.back()} : repeated.states);
                     repeated.StartAnew();
                   });
}

std::vector<SweptOperation> OperationsWhoseThreadsAllocate() {
  std::vector<SweptOperation> operations = SweptOperations();
  std::erase_if(operations, [](const SweptOperation& operation) {
    return operation.name != "merge" && operation.name != "mirror" && operation.name != "pull";
  });
  return operations;
}

INSTANTIATE_TEST_SUITE_P(Operations, MemorySweepTest,
                         ::testing::ValuesIn(OperationsWhoseThreadsAllocate()));

/// Opens the store in a bucket, whose requests have a thread.
Result<std::unique_ptr<CheckpointStore>> OpenInBucket(const FakeS3& server) {
  return CheckpointStore::Open(OpenBucket(server), kv::OpenMode::kWrite,
                               {.grace = std::chrono::milliseconds(0), .take_over = true});
}

TEST(BucketMemorySweepTest, AFailedAllocationOfAThreadIsAnErrorOfTheOperation) {
  const TestTensor tensor(core::DType::kInt8, {6 << 20});  // two parts of an upload
  core::StateDict state;
  state.root().Tensor("w", tensor.view());
  auto server = std::make_unique<FakeS3>();
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, OpenInBucket(*server));
    CAIRN_ASSERT_OK(store->Save(1, state, {}));
    CAIRN_ASSERT_OK(store->Close());
  }
  const auto prepared = server->Objects();
  StoreContents contents;
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, OpenInBucket(*server));
    CAIRN_ASSERT_OK_AND_ASSIGN(contents, ReadStore(*store));
    CAIRN_ASSERT_OK(store->Close());
  }
  const StoreContents with_two = {*contents.begin(), {2, contents.begin()->second}};
  const StoreContents only_two = {{2, contents.begin()->second}};
  SweepAllocations(
      [&]() -> Result<void> {
        CAIRN_TRY_ASSIGN(const auto store, OpenInBucket(*server));
        CAIRN_TRY(store->Save(2, state, {.incremental = false}));
        CAIRN_TRY_ASSIGN(const StoreContents read, ReadStore(*store));
        EXPECT_EQ(read, with_two);
        CAIRN_TRY(store->Delete(std::array<uint64_t, 1>{1}));
        return store->Close();
      },
      [&](bool succeeded) {
        CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, OpenInBucket(*server));
        CAIRN_ASSERT_OK_AND_ASSIGN(const StoreContents read, ReadStore(*store));
        EXPECT_TRUE(read == only_two || (!succeeded && (read == contents || read == with_two)));
        CAIRN_EXPECT_OK(store->Verify(
            {}, [](const kv::Damage& damage) { ADD_FAILURE() << damage.error.ToString(); }));
        CAIRN_EXPECT_OK(store->Close());
        server = std::make_unique<FakeS3>();
        for (const auto& [key, bytes] : prepared) server->AddObject(key, bytes);
      });
}

}  // namespace
}  // namespace cairn::testing
