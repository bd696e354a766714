// Compressed chunks in steps: saves, later saves, compactions, and damage. stored_forms_test.cc has
// what applies to every form of a chunk.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "core/save/internal/compression_rates.h"
#include "core/save/save_options.h"
#include "core/step/contents.h"
#include "core/upkeep/step_part.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using kv::kPageBytes;
using ::testing::Lt;
using ::testing::SizeIs;

constexpr uint64_t kRows = 400;
constexpr uint64_t kColumns = 1000;

const SaveOptions kCompress{.compress = true, .chunk_bytes = 4 * kPageBytes};

class CompressedSaveTest : public StoreTest {
 protected:
  CompressedSaveTest() {
    // Exponents in a short range, and random mantissas.
    for (size_t i = 1; i < weights_.bytes.size(); i += 2) {
      weights_.bytes[i] = (weights_.bytes[i] & std::byte{0x80}) | std::byte{0x3c};
    }
    random_.Fill(noise_.bytes);
  }
  StateDict State() const { return StateOf({{"noise", noise_.view()}, {"w", weights_.view()}}); }
  SaveReport SaveBoth(uint64_t step, const SaveOptions& options) {
    return SaveAndKeep(step, {{"noise", &noise_}, {"w", &weights_}}, options);
  }
  uint64_t CompressedCount(uint64_t step, const std::string& fqn = "w") {
    const auto chunks = Chunks(step, fqn);
    return static_cast<uint64_t>(std::ranges::count_if(
        chunks, [](const ChunkInfo& chunk) { return chunk.stored().is_compressed(); }));
  }

  testing::SeededRandom random_;
  TestTensor weights_{DType::kBFloat16, {kRows, kColumns}};
  TestTensor noise_{DType::kUInt8, {3 * kPageBytes}};
};

TEST_F(CompressedSaveTest, TakesLessSpaceAndIsRestored) {
  const SaveReport report = SaveBoth(1, kCompress);
  EXPECT_THAT(report.written_bytes, Lt(report.logical_bytes * 9 / 10));
  EXPECT_EQ(CompressedCount(1), Chunks(1).size());
  EXPECT_EQ(CompressedCount(1, "noise"), 0u);
  ExpectAllSteps();
}

TEST_F(CompressedSaveTest, EveryElementSizeAndLengthIsRestored) {
  std::map<std::string, TestTensor> tensors;
  for (const DType dtype :
       {DType::kUInt8, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kComplex128}) {
    const uint64_t width = schema::ElementBytes(dtype);
    for (const uint64_t count : {5000, 32'768, 32'769, 100'001}) {
      TestTensor tensor(dtype, {count});
      for (uint64_t i = width - 1; i < tensor.bytes.size(); i += width) {
        tensor.bytes[i] &= std::byte{0x83};  // the sign, and a short range of exponents
      }
      tensors.emplace(fmt::format("{}.{}", schema::DTypeName(dtype), count), std::move(tensor));
    }
  }
  // The page that is tried is compressible, and the others are not.
  std::fill_n(noise_.bytes.begin() + static_cast<ptrdiff_t>(kPageBytes), 6'000, std::byte{0});
  StateDict state = State();
  for (const auto& [fqn, tensor] : tensors) state.root().Tensor(fqn, tensor.view());
  Save(1, state, {.compress = true});
  EXPECT_EQ(CompressedCount(1, "noise"), 0u);
  for (const auto& [fqn, tensor] : tensors) {
    EXPECT_TRUE(LoadBytes(1, fqn) == tensor.bytes) << fqn;
    // One compressible byte in eight or sixteen saves too little.
    if (schema::ElementBytes(tensor.dtype) <= 4) {
      EXPECT_EQ(CompressedCount(1, fqn), 1u) << fqn;
    }
  }
}

TEST_F(CompressedSaveTest, TheSettingOfTheStoreAppliesToEverySaveThatDoesNotStateOtherwise) {
  const SaveOptions plain{.incremental = false, .chunk_bytes = 4 * kPageBytes};
  CAIRN_ASSERT_OK(store->kv().SetCompression(true));
  SaveBoth(1, plain);
  EXPECT_EQ(CompressedCount(1), Chunks(1).size());
  SaveOptions raw = plain;
  raw.compress = false;
  SaveBoth(2, raw);
  EXPECT_EQ(CompressedCount(2), 0u);
  {
    AsyncSaver saver(store.get());
    CAIRN_ASSERT_OK(SaveAndWait(saver, 3, State(), plain));
  }
  kept[3]["w"] = weights_.bytes;
  EXPECT_EQ(CompressedCount(3), Chunks(3).size());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepTicket ticket, StepPart::OpenSession(*store, 4, 1));
  CAIRN_ASSERT_OK_AND_ASSIGN(auto part, StepPart::Begin(*store, ticket, 0, plain));
  CAIRN_ASSERT_OK(part->Add(State()));
  CAIRN_ASSERT_OK(part->Commit({}));
  part.reset();
  kept[4]["w"] = weights_.bytes;
  EXPECT_EQ(CompressedCount(4), Chunks(4).size());
  CAIRN_ASSERT_OK(store->kv().SetCompression(false));
  SaveBoth(5, plain);
  EXPECT_EQ(CompressedCount(5), 0u);
  ExpectAllSteps();
}

TEST_F(CompressedSaveTest, LaterStepsReferToThemAndAddDeltas) {
  SaveBoth(1, kCompress);
  EXPECT_EQ(SaveBoth(2, {.chunk_bytes = 4 * kPageBytes}).written_bytes, 0u);
  for (size_t i = 0; i < weights_.bytes.size(); i += 400) weights_.bytes[i] ^= std::byte{1};
  SaveOptions options = kCompress;
  options.max_deltas = 4;
  const SaveReport report = SaveBoth(3, options);
  EXPECT_THAT(report.written_bytes, Lt(report.logical_bytes / 20));
  EXPECT_THAT(Chunks(3).front().deltas, SizeIs(2));  // the complete chunk, and what changed
  DeleteKept({1, 2});
  ExpectAllSteps();
}

TEST_F(CompressedSaveTest, WithoutDeltasChangedChunksAreCompressedAnew) {
  SaveBoth(1, kCompress);
  weights_.bytes[10] ^= std::byte{1};
  SaveBoth(2, kCompress);
  EXPECT_EQ(CompressedCount(2), Chunks(2).size());
  EXPECT_THAT(Chunks(2).front().deltas, SizeIs(1));
  SaveBoth(3, {.chunk_bytes = 4 * kPageBytes});
  weights_.bytes[11] ^= std::byte{1};
  SaveBoth(4, {.chunk_bytes = 4 * kPageBytes});
  EXPECT_EQ(CompressedCount(4), Chunks(4).size() - 1);  // the changed one is raw
  ExpectAllSteps();
}

TEST_F(CompressedSaveTest, InTheBackground) {
  AsyncSaver saver(store.get());
  SaveOptions options = kCompress;
  options.max_deltas = 2;
  for (uint64_t step = 1; step <= 5; ++step) {
    for (size_t i = 2 * step; i < weights_.bytes.size(); i += 300) {
      weights_.bytes[i] ^= std::byte{1};
    }
    kept[step]["w"] = weights_.bytes;
    CAIRN_ASSERT_OK(SaveAndWait(saver, step, State(), options));
  }
  ExpectAllSteps();
}

TEST_F(CompressedSaveTest, DamageIsFoundAndNamed) {
  SaveBoth(1, kCompress);
  const kv::Extent delta = Chunks(1)[1].deltas.front();
  // Of the mantissas, which are not compressible, so that every bit has an effect.
  FlipByte(FileOf(delta), delta.offset_bytes + delta.length_bytes / 2);
  std::vector<std::byte> bytes(weights_.bytes.size());
  EXPECT_THAT(Load(1, {{.fqn = "w",
                        .box = WholeBox({{kRows, kColumns}}),
                        .target = {DType::kBFloat16, {kRows, kColumns}, {}, bytes.data()}}}),
              testing::IsError(ErrorCode::kDataLoss, "chunk"));
  EXPECT_THAT(VerifyAll(), SizeIs(1));
}

TEST_F(CompressedSaveTest, ACompactionCompressesWhatItCan) {
  SaveBoth(1, {.chunk_bytes = 4 * kPageBytes});
  weights_.bytes[10] ^= std::byte{1};
  SaveBoth(2, {.max_deltas = 4, .chunk_bytes = 4 * kPageBytes});
  EXPECT_EQ(CompressedCount(1), 0u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::CompactReport report, store->Compact({}, true));
  EXPECT_GT(report.compressed_chunks, 0u);
  EXPECT_THAT(report.new_bytes, Lt(report.old_bytes));
  EXPECT_GT(CompressedCount(1), 0u);
  ExpectAllSteps();
  // For chunks that are compressed already, or cannot be, no segment is rewritten.
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::CompactReport again, store->Compact({}, true));
  EXPECT_EQ(again.old_segments, 0u);
  // Without compression, a compaction moves compressed chunks as they are.
  weights_.bytes[9] ^= std::byte{1};
  SaveBoth(3, kCompress);
  DeleteKept({1, 2});
  CAIRN_ASSERT_OK(store->Compact({.max_dead = 0, .fold_all = true}));
  EXPECT_GT(CompressedCount(3), 0u);
  ExpectAllSteps();
}

TEST_F(CompressedSaveTest, SavesThatMayChooseTryBothWays) {
  const std::vector<std::byte> bytes(internal::CompressionRates::kMinBytes, std::byte{7});
  const StateDict state =
      StateOf({{"w", {DType::kUInt8, {static_cast<int64_t>(bytes.size())}, {}, bytes.data()}}});
  const SaveOptions choice{.incremental = false, .compress_if_fast = true};
  CAIRN_ASSERT_OK(store->Save(1, state, choice));
  EXPECT_EQ(CompressedCount(1), 0u);
  AsyncSaver saver(store.get());
  CAIRN_ASSERT_OK(SaveAndWait(saver, 2, state, choice));
  EXPECT_EQ(CompressedCount(2), Chunks(2).size());
  SaveOptions raw = choice;
  raw.compress = false;
  CAIRN_ASSERT_OK(store->Save(3, state, raw));
  EXPECT_EQ(CompressedCount(3), 0u);
}

TEST(CompressionRatesTest, TheFasterWayIsTakenAndTheOtherOneIsTriedAgain) {
  constexpr uint64_t kBytes = internal::CompressionRates::kMinBytes;
  constexpr uint32_t kInterval = internal::CompressionRates::kInterval;
  internal::CompressionRates rates;
  EXPECT_FALSE(rates.Choose());
  rates.Add(false, kBytes - 1, 1);  // too few bytes
  EXPECT_FALSE(rates.Choose());
  rates.Add(false, kBytes, 1);
  EXPECT_TRUE(rates.Choose());
  rates.Add(true, kBytes, 1);
  const auto compressed_of = [&](uint32_t saves) {
    uint32_t compressed = 0;
    for (uint32_t i = 0; i < saves; ++i) compressed += rates.Choose() ? 1 : 0;
    return compressed;
  };
  EXPECT_EQ(compressed_of(kInterval), kInterval - 1);  // at equal rates
  rates.Add(true, kBytes, 1.1);
  EXPECT_EQ(compressed_of(3 * kInterval), 3u);
}

}  // namespace
}  // namespace cairn::core
