// The limit of bytes per second, with times that the tests choose.

#include <gtest/gtest.h>

#include "kv/base/copy_options.h"

namespace cairn::kv {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Throttle::Clock::time_point kStart = Throttle::Clock::time_point(seconds(1'000));

TEST(ThrottleTest, NoLimitNeverWaits) {
  Throttle throttle(0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(throttle.Reserve(1ull << 40, kStart), kStart);
}

TEST(ThrottleTest, TransfersAreAsFarApartAsTheLimitDemands) {
  Throttle throttle(1'000'000);
  EXPECT_EQ(throttle.Reserve(500'000, kStart), kStart);
  EXPECT_EQ(throttle.Reserve(500'000, kStart), kStart + milliseconds(400));
  EXPECT_EQ(throttle.Reserve(1, kStart), kStart + milliseconds(900));
}

TEST(ThrottleTest, PauseDoesNotAllowMoreThanTheBurst) {
  Throttle throttle(1'000'000);
  throttle.Reserve(500'000, kStart);
  const auto later = kStart + seconds(60);
  EXPECT_EQ(throttle.Reserve(200'000, later), later);
  EXPECT_EQ(throttle.Reserve(1, later), later + milliseconds(100));
}

// Copies one after the other share a throttle, so that the limit holds at the beginning of each.
TEST(ThrottleTest, ManySmallTransfersAreLimitedTogether) {
  Throttle throttle(1'000'000);
  Throttle::Clock::time_point now = kStart;
  for (int i = 0; i < 100; ++i) now = throttle.Reserve(100'000, now);
  EXPECT_EQ(now, kStart - Throttle::kBurst + seconds(10) - milliseconds(100));
  EXPECT_EQ(throttle.reserved_bytes(), 10'000'000);
}

}  // namespace
}  // namespace cairn::kv
