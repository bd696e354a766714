#include "kv/io/worker_pool.h"

#include <gtest/gtest.h>

namespace cairn::kv {
namespace {

TEST(WorkerPoolTest, DoesEveryItemOnceInEveryRound) {
  WorkerPool pool(4);
  for (size_t count : {0, 1, 2, 3, 100, 1000}) {
    std::vector<std::atomic<int>> done(count);
    pool.Run(count, [&](size_t i, size_t worker) {
      EXPECT_LT(worker, pool.thread_count());
      ++done[i];
    });
    for (const auto& times : done) EXPECT_EQ(times, 1);
  }
}

TEST(WorkerPoolTest, ConcurrentCallsHaveDifferentWorkers) {
  WorkerPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  pool.Run(2000, [&](size_t, size_t worker) {
    EXPECT_EQ(++inside[worker], 1);
    --inside[worker];
  });
}

}  // namespace
}  // namespace cairn::kv
