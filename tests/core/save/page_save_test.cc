// Saving a chunk of which a few pages have changed: only these pages are written.
// stored_forms_test.cc has what applies to every form of a chunk.

#include <gmock/gmock.h>

#include <filesystem>
#include <set>

#include "core/save/save_options.h"
#include "core/step/contents.h"
#include "kv/base/step_info.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using kv::kPageBytes;
using ::testing::HasSubstr;
using testing::IsError;

constexpr uint64_t kPages = 20;
constexpr uint64_t kTailBytes = 4'000;

class PageSaveTest : public StoreTest {
 protected:
  // One chunk of kPages complete pages and a short one.
  TestTensor tensor_{DType::kFloat32, {kPages * kPageBytes / 4 + kTailBytes / 4}};

  StateDict State(const TestTensor& tensor) { return StateOf({{"w", tensor.view()}}); }
  void Touch(uint64_t page) { tensor_.bytes[page * kPageBytes + 7] ^= std::byte{1}; }

  SaveReport SaveTensor(uint64_t step) { return SaveAndKeep(step, {{"w", &tensor_}}); }

  // Step 1 writes everything, step 2 changes page 4, step 3 changes pages 10 and 11.
  void SaveThreeSteps() {
    SaveTensor(1);
    Touch(4);
    SaveTensor(2);
    Touch(10);
    Touch(11);
    SaveTensor(3);
  }
};

TEST_F(PageSaveTest, OneChangedPageIsWrittenAlone) {
  EXPECT_EQ(SaveTensor(1).written_bytes, tensor_.bytes.size());
  const kv::Extent base = OnlyChunk(1).extents.front();
  Touch(4);
  const SaveReport second = SaveTensor(2);
  EXPECT_EQ(second.written_bytes, kPageBytes);
  EXPECT_EQ(second.chunks, 1u);
  EXPECT_EQ(second.chunks_reused, 0u);
  const ChunkInfo chunk = OnlyChunk(2);
  EXPECT_EQ(chunk.since_step, 2u);
  ASSERT_EQ(chunk.extents.size(), 3u);
  EXPECT_EQ(chunk.extents.front(), base.First(4 * kPageBytes));
  EXPECT_EQ(chunk.extents.back(), base.From(5 * kPageBytes));
  EXPECT_EQ(chunk.extents.all()[1].offset_bytes % 4096, 0u);
  ExpectAllSteps();
}

TEST_F(PageSaveTest, TheShortLastPageIsOneOfThem) {
  SaveTensor(1);
  tensor_.bytes.back() ^= std::byte{1};
  EXPECT_EQ(SaveTensor(2).written_bytes, kTailBytes);
  ExpectAllSteps();
}

TEST_F(PageSaveTest, MoreThanHalfOfThePagesAreAWholeChunk) {
  SaveTensor(1);
  for (uint64_t page = 0; page < 11; ++page) Touch(page);
  EXPECT_EQ(SaveTensor(2).written_bytes, tensor_.bytes.size());
  EXPECT_EQ(OnlyChunk(2).extents.size(), 1u);
}

TEST_F(PageSaveTest, AnUnchangedChunkStaysWhereItLies) {
  SaveThreeSteps();
  const SaveReport fourth = SaveTensor(4);
  EXPECT_EQ(fourth.chunks_reused, 1u);
  EXPECT_EQ(fourth.written_bytes, 0u);
  EXPECT_EQ(OnlyChunk(4).extents, OnlyChunk(3).extents);
  EXPECT_EQ(OnlyChunk(4).extents.size(), 5u);
}

TEST_F(PageSaveTest, ScatteredChangesAreWrittenWholeAtLast) {
  TestTensor large(DType::kInt8, {64 * kPageBytes});
  Save(1, State(large));
  for (uint64_t save = 0; save < 40; ++save) {
    const uint64_t page = save * 23 % 64;
    large.bytes[page * kPageBytes] ^= std::byte{1};
    const SaveReport report = Save(2 + save, State(large));
    EXPECT_THAT(report.written_bytes, ::testing::AnyOf(kPageBytes, large.bytes.size()));
    EXPECT_LE(OnlyChunk(2 + save).extents.size(), 32u);
  }
  EXPECT_EQ(LoadBytes(41, "w"), large.bytes);
  EXPECT_TRUE(VerifyAll().empty());
}

// However often pages change, each page of the chunk is where it was written last.
TEST_F(PageSaveTest, EveryPageIsWhereItWasWrittenLast) {
  testing::SeededRandom random;
  SaveTensor(1);
  std::vector<uint64_t> segment_of(kPages + 1, OnlyChunk(1).extents.front().segment_id);
  for (uint64_t step = 2; step < 40; ++step) {
    SCOPED_TRACE(step);
    std::set<uint64_t> changed;
    for (uint64_t i = random.Between(1, 3); i > 0; --i) changed.insert(random.Between(0, kPages));
    for (const uint64_t page : changed) Touch(page);
    const SaveReport report = SaveTensor(step);
    const ChunkInfo chunk = OnlyChunk(step);
    const uint64_t written = chunk.extents.At(*changed.begin() * kPageBytes).segment_id;
    const bool is_whole = report.written_bytes == tensor_.bytes.size();
    EXPECT_EQ(chunk.extents.length_bytes(), tensor_.bytes.size());
    EXPECT_LE(chunk.extents.size(), 32u);
    for (uint64_t page = 0; page <= kPages; ++page) {
      if (is_whole || changed.contains(page)) segment_of[page] = written;
      EXPECT_EQ(chunk.extents.At(page * kPageBytes).segment_id, segment_of[page]) << page;
    }
  }
  ExpectAllSteps();
}

TEST_F(PageSaveTest, AStepMayBeOverwrittenOnItsOwnBase) {
  SaveThreeSteps();
  Touch(0);
  const SaveReport report = SaveAndKeep(3, {{"w", &tensor_}}, {.overwrite = true});
  EXPECT_EQ(report.written_bytes, kPageBytes);
  EXPECT_EQ(LoadBytes(3, "w"), tensor_.bytes);
  EXPECT_EQ(LoadBytes(2, "w"), kept[2]["w"]);
  EXPECT_TRUE(VerifyAll().empty());
}

TEST_F(PageSaveTest, DamageInAnOldExtentIsFoundAndNamed) {
  SaveThreeSteps();
  // Page 15 of step 3 is where step 1 wrote it, page 4 where step 2 wrote it.
  for (const uint64_t page : {15, 4}) {
    const kv::Extent at = OnlyChunk(3).extents.At(page * kPageBytes);
    const std::string file = FileOf(at);
    FlipByte(file, at.offset_bytes + 100);
    TestTensor target(tensor_.dtype, tensor_.shape, 9);
    const LoadRequest whole = WholeRequest("w", target);
    TestTensor element(DType::kFloat32, {1});
    const LoadRequest part{
        .fqn = "w", .box = {{page * kPageBytes / 4}, {1}}, .target = element.target()};
    for (const LoadRequest& request : {whole, part}) {
      const auto loaded = store->Load(Step(3), {&request, 1});
      ASSERT_THAT(loaded, IsError(ErrorCode::kDataLoss, "page " + std::to_string(page) + " "));
      EXPECT_EQ(loaded.error().key, "w");
      EXPECT_EQ(loaded.error().file, file);
      EXPECT_EQ(loaded.error().offset_bytes, at.offset_bytes);
    }
    // Other parts of the tensor can still be read.
    CAIRN_EXPECT_OK(Load(3, {{.fqn = "w", .box = {{0}, {1}}, .target = element.target()}}));
    const auto damage = VerifyAll(3);
    ASSERT_EQ(damage.size(), 1u);
    EXPECT_EQ(damage[0].file, file);
    EXPECT_EQ(damage[0].offset_bytes, at.offset_bytes);
    EXPECT_THAT(damage[0].message, HasSubstr("page " + std::to_string(page) + " "));
    // A verification of all steps also reads it once and reports it once.
    EXPECT_EQ(VerifyAll().size(), 1u);
    FlipByte(file, at.offset_bytes + 100);
  }
}

TEST_F(PageSaveTest, DamagedPageDigestsAreNamedByTheirFile) {
  SaveThreeSteps();
  const kv::Extent at = OnlyChunk(3).extents.At(4 * kPageBytes);
  FlipByte(FileOf(at), at.page_digests_offset_bytes);
  TestTensor element(DType::kFloat32, {1});
  const auto loaded = Load(3, {{.fqn = "w", .box = {{0}, {1}}, .target = element.target()}});
  ASSERT_THAT(loaded, IsError(ErrorCode::kDataLoss, "page digests"));
  EXPECT_EQ(loaded.error().file, FileOf(at));
  EXPECT_EQ(loaded.error().offset_bytes, at.page_digests_offset_bytes);
  EXPECT_FALSE(VerifyAll(3).empty());
  // The next save does not use damaged page digests: it writes the complete chunk.
  Touch(0);
  EXPECT_EQ(SaveTensor(4).written_bytes, tensor_.bytes.size());
  EXPECT_EQ(LoadBytes(4, "w"), tensor_.bytes);
}

TEST_F(PageSaveTest, AMissingSegmentOfTheBaseCostsNoSave) {
  SaveThreeSteps();
  std::filesystem::remove(FileOf(OnlyChunk(3).extents.At(4 * kPageBytes)));
  Reopen();
  Touch(0);
  EXPECT_EQ(SaveTensor(4).written_bytes, tensor_.bytes.size());
  EXPECT_EQ(LoadBytes(4, "w"), tensor_.bytes);
}

TEST_F(PageSaveTest, WhatStepsShareIsVerifiedOnce) {
  SaveThreeSteps();
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t bytes, store->Verify({}, [](const kv::Damage& found) {
    ADD_FAILURE() << found.error.ToString();
  }));
  EXPECT_EQ(bytes, tensor_.bytes.size() + 3 * kPageBytes);
  // After the first step is deleted, only those of its bytes are left that other steps reference.
  CAIRN_ASSERT_OK(store->Delete(std::vector<uint64_t>{1}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t left, store->Verify({}, [](const kv::Damage& found) {
    ADD_FAILURE() << found.error.ToString();
  }));
  EXPECT_EQ(left, tensor_.bytes.size() - kPageBytes + 3 * kPageBytes);
}

TEST_F(PageSaveTest, ALargeTensorThatChangesInPartsKeepsTheRest) {
  // Chunks that change completely, then chunks of which one page changes.
  constexpr uint64_t kChunkPages = 4, kChunks = 40;
  TestTensor large(DType::kInt8, {kChunks * kChunkPages * kPageBytes});
  const SaveOptions options{.chunk_bytes = kChunkPages * kPageBytes};
  Save(1, State(large), options);
  for (uint64_t page = 0; page < kChunks * kChunkPages; ++page) {
    const bool all_over = page < 20 * kChunkPages;
    if (all_over || page % kChunkPages == 1) large.bytes[page * kPageBytes] ^= std::byte{1};
  }
  const SaveReport report = Save(2, State(large), options);
  EXPECT_EQ(LoadBytes(2, "w"), large.bytes);
  EXPECT_TRUE(VerifyAll().empty());
  EXPECT_EQ(report.chunks_reused, 0u);
  EXPECT_EQ(report.written_bytes, (20 * kChunkPages + 20) * kPageBytes);
}

TEST_F(PageSaveTest, BehindChunksThatChangedAllOverFewAreLookedAt) {
  // Three windows of 64 MiB: the result of the first decides what is probed in the second.
  constexpr uint64_t kMiB = 1 << 20, kInWindow = 16, kChunks = 2 * kInWindow + 2;
  TestTensor large(DType::kInt8, {kChunks * 4 * kMiB});
  Save(1, State(large));
  for (uint64_t at = 0; at < large.bytes.size(); at += kPageBytes) {
    const bool all_over = at < kInWindow * 4 * kMiB;
    if (all_over || at % (4 * kMiB) == 0) large.bytes[at] ^= std::byte{1};
  }
  const SaveReport report = Save(2, State(large));
  EXPECT_EQ(report.written_bytes, (2 * kInWindow - 1) * 4 * kMiB + 3 * kPageBytes);
  EXPECT_TRUE(LoadBytes(2, "w") == large.bytes);
}

}  // namespace
}  // namespace cairn::core
