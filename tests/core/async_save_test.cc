#include "core/async_save.h"

#include <atomic>

#include "core/save/save_options.h"
#include "kv/base/options.h"
#include "tests/core/tensor/strided_fixture.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;

class AsyncSaveTest : public StoreTest {};

TEST_F(AsyncSaveTest, SavesWhatTheTensorsHeldWhenItWasCalled) {
  TestTensor tensor(DType::kFloat32, {3000, 1000});
  const auto before = tensor.bytes;
  const StateDict state = StateOf({{"w", tensor.view()}});
  AsyncSaver saver(store.get());
  // The save cannot end before the tensors are changed: its first progress report waits for that.
  std::atomic<bool> changed = false;
  const SaveOptions options{.chunk_bytes = 100'000, .progress = [&](uint64_t, uint64_t) {
                              changed.wait(false);
                              return true;
                            }};
  CAIRN_ASSERT_OK_AND_ASSIGN(const SaveHandle handle, saver.Save(1, state, options));
  handle.WaitStaged();
  EXPECT_FALSE(handle.done());
  EXPECT_FALSE(handle.WaitFor(std::chrono::milliseconds(1)));
  for (std::byte& b : tensor.bytes) b = std::byte{0xee};
  changed = true;
  changed.notify_all();
  CAIRN_ASSERT_OK_AND_ASSIGN(const SaveReport report, handle.Wait());
  EXPECT_EQ(report.step, 1u);
  EXPECT_TRUE(handle.done());
  EXPECT_EQ(LoadBytes(1, "w"), before);
}

TEST_F(AsyncSaveTest, StagingIsReusedAndOnlyGrows) {
  TestTensor small(DType::kFloat32, {1000, 1000}), large(DType::kFloat32, {3000, 1000});
  const StateDict small_state = StateOf({{"w", small.view()}});
  const StateDict large_state = StateOf({{"w", large.view()}});
  AsyncSaver saver(store.get());
  EXPECT_EQ(saver.staging_bytes(), 0u);
  CAIRN_ASSERT_OK(saver.Save(1, large_state));
  const uint64_t staged = saver.staging_bytes();
  EXPECT_GE(staged, large.bytes.size());
  CAIRN_ASSERT_OK(saver.Save(2, small_state));
  CAIRN_ASSERT_OK_AND_ASSIGN(const SaveHandle last, saver.Save(3, large_state));
  EXPECT_EQ(saver.staging_bytes(), staged);
  CAIRN_ASSERT_OK(last.Wait());
  EXPECT_EQ(LoadBytes(2, "w"), small.bytes);
  EXPECT_EQ(LoadBytes(3, "w"), large.bytes);
}

TEST_F(AsyncSaveTest, SharedMemoryIsStagedOnceAndStillShared) {
  TestTensor storage(DType::kUInt8, {3'000'000});
  const StateDict state =
      StateOf({{"all", storage.view()},
               {"tied", storage.view()},
               {"part", {DType::kUInt8, {1000, 10}, {2000, 1}, storage.bytes.data() + 5}}});
  AsyncSaver saver(store.get());
  CAIRN_ASSERT_OK_AND_ASSIGN(const SaveReport report, SaveAndWait(saver, 1, state));
  EXPECT_EQ(report.written_bytes, 3'000'000u);
  EXPECT_LE(saver.staging_bytes(), 4'200'000u);
  EXPECT_EQ(LoadBytes(1, "part"), NaiveRowMajor(state.tensors[2]));
}

TEST_F(AsyncSaveTest, ALoneColumnIsStagedWithoutItsGaps) {
  TestTensor matrix(DType::kFloat32, {1000, 4000});  // 16 MB
  const StateDict state =
      StateOf({{"column", {DType::kFloat32, {1000}, {4000}, matrix.bytes.data()}},
               {"expanded", {DType::kFloat32, {500, 500}, {0, 0}, matrix.bytes.data() + 8}}});
  AsyncSaver saver(store.get());
  CAIRN_ASSERT_OK(SaveAndWait(saver, 1, state, {}));
  EXPECT_EQ(LoadBytes(1, "column"), NaiveRowMajor(state.tensors[0]));
  EXPECT_EQ(LoadBytes(1, "expanded"), NaiveRowMajor(state.tensors[1]));
}

TEST_F(AsyncSaveTest, ErrorsOfTheStateComeAtOnceAndOthersWithTheHandle) {
  const TestTensor tensor(DType::kFloat32, {10});
  const StateDict good = StateOf({{"w", tensor.view()}});
  const StateDict bad = StateOf({{"n", {.dtype = DType::kFloat32, .shape = {4}}}});
  AsyncSaver saver(store.get());
  EXPECT_THAT(saver.Save(1, bad), IsError(ErrorCode::kInvalidArgument, "n"));
  CAIRN_ASSERT_OK(SaveAndWait(saver, 1, good));
  EXPECT_THAT(saver.Save(1, good), IsError(ErrorCode::kConflict, "1"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const SaveHandle late, saver.Save(2, good, {.base_step = 99}));
  EXPECT_THAT(late.Wait(), IsError(ErrorCode::kNotFound, ""));
  EXPECT_THAT(late.Wait(), IsError(ErrorCode::kNotFound, "")) << "the answer stays the same";
  CAIRN_ASSERT_OK_AND_ASSIGN(const SaveHandle after, saver.Save(2, good));
  CAIRN_EXPECT_OK(after.Wait());
}

TEST_F(AsyncSaveTest, AReadOnlyStoreIsRefusedAtOnce) {
  Reopen(kv::OpenMode::kRead);
  AsyncSaver saver(store.get());
  EXPECT_THAT(saver.Save(1, StateDict()), IsError(ErrorCode::kFailedPrecondition, ""));
}

TEST_F(AsyncSaveTest, DestroyingTheSaverFinishesItsSave) {
  const TestTensor tensor(DType::kFloat32, {1000, 1000});
  const StateDict state = StateOf({{"w", tensor.view()}});
  std::optional<SaveHandle> handle;
  {
    AsyncSaver saver(store.get());
    CAIRN_ASSERT_OK_AND_ASSIGN(handle, saver.Save(1, state));
  }
  EXPECT_TRUE(handle->done());
  EXPECT_EQ(LoadBytes(1, "w"), tensor.bytes);
}

TEST_F(AsyncSaveTest, SavesInARowEachKeepTheirOwnState) {
  TestTensor tensor(DType::kFloat32, {500, 1000});
  const StateDict state = StateOf({{"w", tensor.view()}});
  std::vector<std::vector<std::byte>> held;
  AsyncSaver saver(store.get());
  std::vector<SaveHandle> handles;
  for (uint64_t step = 0; step < 8; ++step) {
    tensor.bytes[step * 200'000] ^= std::byte{0xff};
    held.push_back(tensor.bytes);
    CAIRN_ASSERT_OK_AND_ASSIGN(SaveHandle handle, saver.Save(step, state, {.chunk_bytes = 50'000}));
    handles.push_back(std::move(handle));
  }
  for (const SaveHandle& handle : handles) CAIRN_EXPECT_OK(handle.Wait());
  for (uint64_t step = 0; step < 8; ++step) EXPECT_EQ(LoadBytes(step, "w"), held[step]);
}

}  // namespace
}  // namespace cairn::core
