// Scrubs find damage at a limited rate, and no damage in what a writer deletes at the same time.

#include "core/upkeep/scrub.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using std::chrono::milliseconds;
using ::testing::IsEmpty;
using ::testing::Not;

class ScrubTest : public StoreTest {
 protected:
  void SaveStep(uint64_t step) {
    const TestTensor tensor(DType::kInt8, {300'000}, static_cast<uint8_t>(step));
    Save(step, StateOf({{"w", tensor.view()}}));
  }

  void Flip() {
    for (const auto& entry : std::filesystem::directory_iterator(directory / "store/segments")) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(5000);
      file.put('\x77');
    }
  }

  /// Waits until the scrub has completed `passes`.
  static ScrubState Await(const BackgroundScrub& scrub, uint64_t passes) {
    while (scrub.state().passes < passes) std::this_thread::sleep_for(milliseconds(10));
    return scrub.state();
  }
};

TEST_F(ScrubTest, FindsDamageOnce) {
  SaveStep(1);
  SaveStep(2);
  CAIRN_ASSERT_OK_AND_ASSIGN(const ScrubReport good, ScrubOnce(*store, 0));
  EXPECT_THAT(good.damage, IsEmpty());
  EXPECT_EQ(good.bytes_read, 600'000u);
  EXPECT_EQ(good.steps, 2u);
  Flip();
  CAIRN_ASSERT_OK_AND_ASSIGN(const ScrubReport bad, ScrubOnce(*store, 0));
  EXPECT_EQ(bad.damage.size(), 2u);
}

TEST_F(ScrubTest, TheRateIsLimited) {
  SaveStep(1);
  SaveStep(2);
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_ASSERT_OK(ScrubOnce(*store, 1'000'000));
  // A delay can be longer, but not shorter: 0.6 s, less the burst of the throttle.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(400));
}

TEST_F(ScrubTest, APassCanBeStoppedWhileItWaits) {
  SaveStep(1);
  SaveStep(2);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto scrub,
                             BackgroundScrub::Start(*store, {.max_bytes_per_second = 1000}));
  while (!scrub->state().is_running) std::this_thread::sleep_for(milliseconds(1));
  scrub->Stop();
  EXPECT_EQ(scrub->state().passes, 0u);
  scrub->Stop();
}

TEST_F(ScrubTest, SeesNewStepsAndDamageInTheBackground) {
  SaveStep(1);
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto scrub,
      BackgroundScrub::Start(*store, {.max_bytes_per_second = 0, .every = milliseconds(20)}));
  EXPECT_EQ(Await(*scrub, 2).damage_count, 0u);
  SaveStep(2);
  store.reset();  // the scrub has its own handle
  const uint64_t before = scrub->state().bytes_read;
  const uint64_t passes = scrub->state().passes;
  EXPECT_GE(Await(*scrub, passes + 2).bytes_read, before + 600'000u);
  Flip();
  const ScrubState state = Await(*scrub, scrub->state().passes + 2);
  EXPECT_GT(state.damage_count, 0u);
  EXPECT_THAT(state.damage, Not(IsEmpty()));
  EXPECT_FALSE(state.error.has_value());
}

TEST_F(ScrubTest, AWriterThatDeletesCausesNoReports) {
  store.reset();
  kv::StoreOptions options;
  options.grace = milliseconds(0);
  CAIRN_ASSERT_OK_AND_ASSIGN(
      store, CheckpointStore::Open(directory / "store", kv::OpenMode::kWrite, options));
  SaveStep(1);
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto scrub,
      BackgroundScrub::Start(*store, {.max_bytes_per_second = 0, .every = milliseconds(0)}));
  for (uint64_t step = 2; step < 60; ++step) {
    SaveStep(step);
    CAIRN_ASSERT_OK(store->Delete(std::array{step - 1}));
    if (step % 10 == 0) {
      CAIRN_ASSERT_OK(store->Compact({.max_dead = 0}));
    }
    const ScrubState state = scrub->state();
    for (const Error& error : state.damage) ADD_FAILURE() << error.ToString();
    EXPECT_FALSE(state.error.has_value()) << state.error->ToString();
  }
  EXPECT_GT(scrub->state().passes, 3u);
}

}  // namespace
}  // namespace cairn::core
