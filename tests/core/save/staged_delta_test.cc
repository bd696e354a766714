// What is found while a state is staged: deltas, in comparison with what was staged before, and
// unchanged chunks.

#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <map>

#include "core/async_save.h"
#include "core/step/contents.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using kv::kPageBytes;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kChunkBytes = 4 * kPageBytes;
const SaveOptions kOptions{.max_deltas = 3, .chunk_bytes = kChunkBytes};

// Changes about one of 50 bytes of a range.
void Change(std::span<std::byte> bytes, testing::SeededRandom& random) {
  for (uint64_t at = random.Between(0, 99); at < bytes.size(); at += random.Between(1, 99)) {
    bytes[at] ^= std::byte{1};
  }
}

class StagedDeltaTest : public StoreTest {
 protected:
  TestTensor tensor_{DType::kUInt8, {10 * kChunkBytes}};
  testing::SeededRandom random_;

  StateDict State() const { return StateOf({{"w", tensor_.view()}}); }
};

TEST_F(StagedDeltaTest, TheBaseIsNotRead) {
  AsyncSaver saver(store.get());
  const auto with_text = [&](size_t length) {  // which is before the tensor in key order
    StateDict state = State();
    state.root().Value("a", std::string(length, 'a'));
    return state;
  };
  CAIRN_ASSERT_OK(SaveAndWait(saver, 1, with_text(110'000), kOptions));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto base, store->Chunks(Step(1), "w"));
  for (const ChunkInfo& chunk : base) {
    const kv::Extent& extent = chunk.extents.front();
    for (uint64_t at = 0; at < extent.length_bytes; at += kPageBytes) {
      FlipByte(FileOf(extent), extent.offset_bytes + at);
    }
  }
  Change(tensor_.bytes, random_);
  CAIRN_ASSERT_OK(SaveAndWait(saver, 2, with_text(130'000), kOptions));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(2), "w"));
  for (const ChunkInfo& chunk : chunks) EXPECT_THAT(chunk.deltas, SizeIs(1));
}

TEST_F(StagedDeltaTest, AfterASaveThatFailedTheBytesThatItStagedAreNoBase) {
  AsyncSaver saver(store.get());
  CAIRN_ASSERT_OK(SaveAndWait(saver, 1, State(), kOptions));
  Change(tensor_.bytes, random_);
  SaveOptions lost_base = kOptions;
  lost_base.base_step = 99;
  CAIRN_ASSERT_OK_AND_ASSIGN(const SaveHandle lost, saver.Save(2, State(), lost_base));
  EXPECT_FALSE(lost.Wait());
  Change(tensor_.bytes, random_);
  CAIRN_ASSERT_OK(SaveAndWait(saver, 3, State(), kOptions));
  EXPECT_TRUE(LoadBytes(3, "w") == tensor_.bytes);
}

// The base of an asynchronous save is overwritten between its staging and its writing.
class ReplacedBaseTest : public StagedDeltaTest {
 protected:
  /// Step 1 is replaced when step 2 has been staged after `change`.
  Result<SaveReport> SaveWhileTheBaseIsReplacedBy(const TestTensor& other,
                                                  const std::function<void()>& change) {
    AsyncSaver saver(store.get());
    for (const uint64_t step : {0, 1}) EXPECT_TRUE(SaveAndWait(saver, step, State(), kOptions));
    change();
    SaveOptions options = kOptions;
    options.check_memory = [&]() -> Result<void> {
      Save(1, StateOf({{"w", other.view()}}), {.overwrite = true, .chunk_bytes = kChunkBytes});
      return {};
    };
    return SaveAndWait(saver, 2, State(), options);
  }
};

TEST_F(ReplacedBaseTest, DeltasRelativeToOtherBytesAreNotStored) {
  // The other step has other bytes, and another shape.
  for (const uint64_t size : {10 * kChunkBytes, kChunkBytes / 2}) {
    const TestTensor other(DType::kUInt8, {size}, 77);
    CAIRN_ASSERT_OK(SaveWhileTheBaseIsReplacedBy(other, [&] { Change(tensor_.bytes, random_); }));
    EXPECT_TRUE(LoadBytes(2, "w") == tensor_.bytes);
    EXPECT_THAT(VerifyAll(), IsEmpty());
    CAIRN_ASSERT_OK(store->Delete(std::vector<uint64_t>{0, 1, 2}));
  }
}

TEST_F(ReplacedBaseTest, WithoutTheBytesOfUnchangedChunksTheSaveFails) {
  const TestTensor other(DType::kUInt8, {10 * kChunkBytes}, 77);
  EXPECT_THAT(SaveWhileTheBaseIsReplacedBy(other, [] {}),
              testing::IsError(ErrorCode::kConflict, "save again"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, store->StepNumbers());
  EXPECT_EQ(steps, (std::vector<uint64_t>{0, 1}));
}

TEST_F(StagedDeltaTest, ChunksThatAreUnchangedAreNotCopied) {
  const SaveOptions options{.chunk_bytes = kChunkBytes};
  AsyncSaver saver(store.get());
  std::vector<std::vector<std::byte>> held;
  for (uint64_t step = 0; step < 60; step += 10) {
    tensor_.bytes[step * 40'000] ^= std::byte{1};
    held.push_back(tensor_.bytes);
    CAIRN_ASSERT_OK_AND_ASSIGN(const SaveReport report, SaveAndWait(saver, step, State(), options));
    EXPECT_EQ(report.chunks_reused, step == 0 ? 0u : 9u);
    if (step == 30) {
      // Another step in between, with which the next save is compared.
      Save(35, State(), options);
      CAIRN_ASSERT_OK(store->Delete(std::array<uint64_t, 2>{20, 30}));
    }
  }
  for (const uint64_t i : {0, 1, 4, 5}) EXPECT_TRUE(LoadBytes(10 * i, "w") == held[i]) << i;
  // Chunks of the same bytes are copied if they have other keys.
  const StateDict reshaped =
      StateOf({{"w", {DType::kUInt8, {20, tensor_.bytes.size() / 20}, {}, tensor_.bytes.data()}}});
  CAIRN_ASSERT_OK(SaveAndWait(saver, 60, reshaped, options));
  EXPECT_TRUE(LoadBytes(60, "w") == tensor_.bytes);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(StagedDeltaTest, AsyncSavesKeepEveryStepBitForBit) {
  const TestTensor other(DType::kUInt8, {5000});
  std::map<uint64_t, std::vector<std::byte>> states;
  AsyncSaver saver(store.get());
  for (uint64_t step = 0; step < 30; ++step) {
    const std::span<std::byte> bytes(tensor_.bytes);
    const uint64_t begin = random_.Between(0, bytes.size() - 1);
    const uint64_t length = random_.Between(0, bytes.size() - begin);
    if (random_.Chance(0.2)) {
      for (std::byte& b : bytes.subspan(begin, length)) b ^= std::byte{0x5a};
    } else if (random_.Chance(0.9)) {
      Change(bytes.subspan(begin, length), random_);
    }
    StateDict state;  // in one of two layouts
    if (random_.Chance(0.2)) state.root().Tensor("a", other.view());
    state.root().Tensor("w", tensor_.view());
    CAIRN_ASSERT_OK(SaveAndWait(saver, step, state, kOptions));
    states[step] = tensor_.bytes;
    if (random_.Chance(0.1)) Save(1000 + step, State());  // a step of another saver
    if (random_.Chance(0.2)) {
      const uint64_t deleted = random_.Between(0, step);
      if (states.erase(deleted) == 1) {
        CAIRN_ASSERT_OK(store->Delete({&deleted, 1}));
      }
    }
  }
  for (const auto& [step, bytes] : states) EXPECT_TRUE(LoadBytes(step, "w") == bytes) << step;
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

}  // namespace
}  // namespace cairn::core
