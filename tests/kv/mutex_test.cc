#include "kv/base/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace cairn {
namespace {

using std::chrono::steady_clock;

struct Counter {
  Mutex mutex;
  CondVar changed;
  int value CAIRN_GUARDED_BY(mutex) = 0;
};

TEST(MutexTest, ExcludesOtherThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 10'000;
  Counter counter;

  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&counter] {
      for (int round = 0; round < kRounds; ++round) {
        MutexLock lock(counter.mutex);
        ++counter.value;
      }
    });
  }
  threads.clear();

  MutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, kThreads * kRounds);
}

TEST(MutexLockTest, UnlocksAndLocksWithinItsScope) {
  Counter counter;
  {
    MutexLock lock(counter.mutex);
    lock.Unlock();
    std::jthread([&counter] {
      MutexLock other(counter.mutex);
      counter.value = 1;
    }).join();
    lock.Lock();
    EXPECT_EQ(counter.value, 1);
    lock.Unlock();
  }

  MutexLock lock(counter.mutex);  // would deadlock if the first lock still held the mutex
  EXPECT_EQ(counter.value, 1);
}

struct SharedCounter {
  SharedMutex mutex;
  int value CAIRN_GUARDED_BY(mutex) = 0;
};

TEST(SharedMutexTest, AWriterExcludesOtherWritersAndReaders) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 5'000;
  SharedCounter counter;

  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&counter] {
      for (int round = 0; round < kRounds; ++round) {
        const WriterMutexLock lock(counter.mutex);
        ++counter.value;  // odd only while this lock is held
        ++counter.value;
      }
    });
    threads.emplace_back([&counter] {
      for (int round = 0; round < kRounds; ++round) {
        const ReaderMutexLock lock(counter.mutex);
        EXPECT_EQ(counter.value % 2, 0);
      }
    });
  }
  threads.clear();

  const ReaderMutexLock lock(counter.mutex);
  EXPECT_EQ(counter.value, 2 * kThreads * kRounds);
}

TEST(SharedMutexTest, ReadersDoNotExcludeEachOther) {
  SharedCounter counter;
  const ReaderMutexLock lock(counter.mutex);
  int seen = -1;

  std::jthread([&] {
    const ReaderMutexLock other(counter.mutex);  // would deadlock if the locks were exclusive
    seen = counter.value;
  }).join();

  EXPECT_EQ(seen, 0);
}

TEST(CondVarTest, WaitReturnsAfterTheChange) {
  Counter counter;
  std::jthread other([&counter] {
    MutexLock lock(counter.mutex);
    while (counter.value != 1) counter.changed.Wait(counter.mutex);
    counter.value = 2;
    counter.changed.NotifyOne();
  });

  MutexLock lock(counter.mutex);
  counter.value = 1;
  counter.changed.NotifyAll();
  while (counter.value != 2) counter.changed.Wait(counter.mutex);

  EXPECT_EQ(counter.value, 2);
}

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
