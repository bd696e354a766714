#include "kv/base/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace cairn {
namespace {

using std::chrono::steady_clock;

struct Counter {
  Mutex mutex;
  CondVar changed;
  int value CAIRN_GUARDED_BY(mutex) = 0;
};

TEST(CondVarTest, WaitUntilReturnsTrueForAChangeBeforeTheDeadline) {
  Counter counter;
  const auto deadline = steady_clock::now() + std::chrono::minutes(5);
  MutexLock lock(counter.mutex);
  std::jthread other([&counter] {
    MutexLock other_lock(counter.mutex);  // only after the first thread waits
    counter.value = 1;
    counter.changed.NotifyAll();
  });

  bool in_time = true;
  while (counter.value == 0 && in_time)
    in_time = counter.changed.WaitUntil(counter.mutex, deadline);

  EXPECT_TRUE(in_time);
  EXPECT_EQ(counter.value, 1);
  lock.Unlock();
}

TEST(CondVarTest, WaitUntilHoldsTheMutexAfterTheDeadline) {
  Counter counter;
  const auto deadline = steady_clock::now() + std::chrono::milliseconds(20);
  std::atomic<bool> other_ran = false;
  std::jthread other;
  {
    MutexLock lock(counter.mutex);
    while (counter.changed.WaitUntil(counter.mutex, deadline)) {
    }
    EXPECT_GE(steady_clock::now(), deadline);
    other = std::jthread([&] {
      MutexLock other_lock(counter.mutex);
      other_ran = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(other_ran);  // never true while this thread holds the mutex
  }
  other.join();

  EXPECT_TRUE(other_ran);
}

}  // namespace
}  // namespace cairn
