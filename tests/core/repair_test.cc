// Damaged payload is replaced by good copies from other stores and other steps.

#include "core/upkeep/repair.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/load/load_options.h"
#include "kv/base/digest.h"
#include "kv/copy_steps.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/kv_records.h"
#include "kv/step_writer.h"
#include "kv/store.h"
#include "schema/little_endian.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

namespace fs = std::filesystem;
using cairn::testing::IsError;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::Not;

class RepairTest : public StoreTest {
 protected:
  using Sources = std::vector<std::unique_ptr<CheckpointStore>>;

  void SetUp() override {
    StoreTest::SetUp();
    SaveStep(1);
    tensors_[0].bytes[100] ^= std::byte{1};
    SaveStep(2, {.max_deltas = 4});
    tensors_[1].bytes[70'000] ^= std::byte{1};
    const auto before = Segments();
    SaveStep(3);
    const auto after = Segments();
    const auto added = std::ranges::mismatch(after, before).in1;
    ASSERT_NE(added, after.end());
    last_segment_ = *added;
  }

  void SaveStep(uint64_t step, SaveOptions options = {}) {
    options.chunk_bytes = 256 << 10;
    Save(step, NumberedState(tensors_), options);
    saved_[step] = tensors_;
  }

  /// Copies all steps to another store, and returns it, open for reading.
  Sources MakeMirror() {
    const std::string path = directory / "mirror";
    auto mirror = CheckpointStore::Open(path, kv::OpenMode::kWrite);
    EXPECT_TRUE(testing::IsOk(mirror));
    kv::CopyOptions options;
    options.steps = {1, 2, 3};
    EXPECT_TRUE(testing::IsOk(kv::CopySteps(store->kv(), (*mirror)->kv(), options)));
    mirror->reset();
    Sources sources;
    sources.push_back(*CheckpointStore::Open(path, kv::OpenMode::kRead));
    return sources;
  }

  std::vector<std::string> Segments() const {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(directory / "store/segments")) {
      files.push_back(entry.path());
    }
    std::ranges::sort(files);
    return files;
  }

  /// Changes a byte, and opens the store again.
  void Flip(const std::string& path, uint64_t offset_bytes) {
    store.reset();
    FlipByte(path, offset_bytes);
    Reopen();
  }

  void ExpectWhole() {
    EXPECT_THAT(VerifyAll(), IsEmpty());
    for (const auto& [step, tensors] : saved_) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_EQ(LoadBytes(step, fmt::format("t{}", i)), tensors[i].bytes) << step << " " << i;
      }
    }
  }

  std::vector<TestTensor> tensors_{
      {DType::kBFloat16, {300'000}, 1}, {DType::kFloat32, {100'000}, 2}, {DType::kInt8, {5}, 3}};
  std::map<uint64_t, std::vector<TestTensor>> saved_;
  std::string last_segment_;  // has what step 3 alone uses
};

TEST_F(RepairTest, EveryDamagedByteIsReplacedFromAMirror) {
  const Sources mirror = MakeMirror();
  for (const std::string& segment : Segments()) {
    const uint64_t size_bytes = fs::file_size(segment);
    // The header, payload, page digests, the footer and the trailer.
    for (const uint64_t offset :
         {uint64_t{9}, uint64_t{4096}, size_bytes / 2, size_bytes - 5000, size_bytes - 20}) {
      SCOPED_TRACE(fmt::format("{} byte {}", segment, offset));
      store.reset();
      fs::copy(directory / "store", directory / "whole", fs::copy_options::recursive);
      Flip(segment, offset);
      const bool is_damaged = !VerifyAll().empty();
      CAIRN_ASSERT_OK_AND_ASSIGN(const RepairReport report, Repair(*store, mirror));
      EXPECT_EQ(report.found > 0, is_damaged);
      EXPECT_THAT(report.remaining, IsEmpty());
      ExpectWhole();
      store.reset();
      fs::remove_all(directory / "store");
      fs::rename(directory / "whole", directory / "store");
      Reopen();
    }
  }
}

TEST_F(RepairTest, MissingAndCutSegmentsAreWrittenAgain) {
  const Sources mirror = MakeMirror();
  const std::vector<std::string> segments = Segments();
  store.reset();
  fs::remove(segments[0]);
  fs::resize_file(segments[1], 5000);
  Reopen();
  CAIRN_ASSERT_OK_AND_ASSIGN(const RepairReport report, Repair(*store, mirror));
  EXPECT_GT(report.repaired_chunks, 0u);
  EXPECT_GT(report.rewritten_steps, 0u);
  EXPECT_THAT(report.remaining, IsEmpty());
  ExpectWhole();
  Reopen();
  ExpectWhole();
}

TEST_F(RepairTest, ACopyInAnotherStepIsFoundWithoutASource) {
  // Step 4 is written completely, and has the bytes of step 3.
  SaveStep(4, {.incremental = false});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(4), "t1"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->kv().Latest());
  const kv::Extent extent = chunks.back().extents.front();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segment, snapshot->FindSegment(extent.segment_id));
  Flip(directory / ("store/segments/" + segment.name), extent.offset_bytes);
  CAIRN_ASSERT_OK_AND_ASSIGN(const RepairReport report, Repair(*store, {}));
  EXPECT_EQ(report.damaged_chunks, 1u);
  EXPECT_EQ(report.repaired_chunks, 1u);
  EXPECT_GT(report.moved_chunks, 0u);
  EXPECT_THAT(report.remaining, IsEmpty());
  ExpectWhole();
}

// docs/format/segment.md: each extent of a chunk with several begins at a multiple of 4 KiB.
TEST_F(RepairTest, PartsOfChunksRemainAligned) {
  const TestTensor small(DType::kInt8, {132}, 7);
  TestTensor parts(DType::kInt8, {200'000}, 8);
  Save(8, NumberedState(std::vector{small, parts}));
  parts.bytes.back() ^= std::byte{1};
  Save(9, NumberedState(std::vector{TestTensor(DType::kInt8, {132}, 9), parts}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto before, store->Chunks(Step(9), "t1"));
  ASSERT_EQ(before[0].extents.size(), 2u);
  Flip(FileOf(before[0].extents.back()), 9);
  EXPECT_THAT(VerifyAll(), Not(IsEmpty()));
  CAIRN_ASSERT_OK_AND_ASSIGN(const RepairReport report, Repair(*store, {}));
  EXPECT_EQ(report.moved_chunks, 2u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto after, store->Chunks(Step(9), "t1"));
  ASSERT_EQ(after[0].extents.size(), 2u);
  EXPECT_NE(after[0].extents.back(), before[0].extents.back());
  for (const kv::Extent& extent : after[0].extents) EXPECT_EQ(extent.offset_bytes % 4096, 0u);
  ExpectWhole();
}

TEST_F(RepairTest, WhatHasNoCopyRemainsDamagedAndIsNamed) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto chunks, store->Chunks(Step(1), "t2"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store->kv().Latest());
  const kv::Extent extent = chunks[0].extents.front();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segment, snapshot->FindSegment(extent.segment_id));
  Flip(directory / ("store/segments/" + segment.name), extent.offset_bytes);
  for (const bool dry_run : {true, false, false}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(
        const RepairReport report,
        Repair(*store, {},
               {.dry_run = dry_run, .progress = {}, .record_progress = {}, .write_progress = {}}));
    EXPECT_THAT(report.remaining, ElementsAre(Field(&Error::key, "t2")));
    EXPECT_EQ(report.repaired_chunks, 0u);
  }
  TestTensor target(DType::kInt8, {5});
  EXPECT_THAT(Load(1, {WholeRequest("t2", target)}), IsError(ErrorCode::kDataLoss, ""));
  EXPECT_EQ(LoadBytes(1, "t0"), saved_[1][0].bytes);
}

// Its record has a right checksum, and names more bytes than there is memory.
TEST_F(RepairTest, AForgedLengthOfAChunkIsDamage) {
  const Sources mirror = MakeMirror();
  CAIRN_ASSERT_OK_AND_ASSIGN(auto snapshot, store->kv().Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const kv::StepInfo base, snapshot->FindStep(1));
  CAIRN_ASSERT_OK_AND_ASSIGN(auto writer, store->kv().Begin(9, {}));
  uint64_t segment_id = 0;
  for (const kv::Column column : {kv::Column::kTensors, kv::Column::kChunks}) {
    CAIRN_ASSERT_OK(snapshot->Scan(
        column, base, "",
        [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
          if (column == kv::Column::kTensors) {
            CAIRN_TRY(writer->AddRecord(column, key, record));
            return true;
          }
          CAIRN_TRY_ASSIGN(kv::ChunkEntry entry, kv::internal::DecodeChunk(record));
          kv::Extent extent = entry.extents.payload.front();
          if (std::exchange(segment_id, extent.segment_id) == 0) {
            extent.offset_bytes += kv::kPageBytes;
            extent.length_bytes = uint64_t{1} << 50;
            entry.extents = extent;
          }
          CAIRN_TRY(writer->AddChunk(key, std::move(entry), /*reused=*/true));
          return true;
        }));
  }
  writer->ReferTo(base);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto structure, snapshot->GetStructure(base));
  CAIRN_ASSERT_OK(writer->SetStructure(*structure));
  CAIRN_ASSERT_OK(writer->Commit({.base_step = 1, .tensor_count = base.tensor_count}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segment, snapshot->FindSegment(segment_id));
  writer.reset();  // it keeps the store open
  Flip(directory / ("store/segments/" + segment.name), 4096);
  CAIRN_ASSERT_OK_AND_ASSIGN(const RepairReport report, Repair(*store, mirror));
  EXPECT_GT(report.repaired_chunks, 0u);
  EXPECT_EQ(LoadBytes(1, "t0"), saved_[1][0].bytes);
}

// A segment with digests of a kind that this build does not know.
TEST_F(RepairTest, WhatANewerCairnHasWrittenIsNotReplaced) {
  const Sources mirror = MakeMirror();
  store.reset();
  const uint64_t trailer_bytes = fs::file_size(last_segment_) - 80;
  std::fstream file(last_segment_, std::ios::in | std::ios::out | std::ios::binary);
  std::array<char, 80> trailer;
  file.seekg(static_cast<std::streamoff>(trailer_bytes));
  file.read(trailer.data(), trailer.size());
  trailer[12] = 9;
  const auto covered = std::as_writable_bytes(std::span(trailer));
  schema::PutLittleEndian(covered, 72, kv::Checksum64(covered.first(72)));
  file.seekp(static_cast<std::streamoff>(trailer_bytes));
  file.write(trailer.data(), trailer.size());
  file.close();
  Reopen();
  const auto segments = Segments();
  EXPECT_THAT(Repair(*store, mirror), IsError(ErrorCode::kUnimplemented, "kind 9"));
  EXPECT_EQ(Segments(), segments);
}

TEST_F(RepairTest, AStoreWithoutDamageIsNotChanged) {
  const auto segments = Segments();
  CAIRN_ASSERT_OK_AND_ASSIGN(const RepairReport report, Repair(*store, {}));
  EXPECT_EQ(report.found, 0u);
  EXPECT_EQ(Segments(), segments);
  const Sources mirror = MakeMirror();
  Flip(last_segment_, 4096);
  Reopen(kv::OpenMode::kRead);
  EXPECT_THAT(Repair(*store, mirror), IsError(ErrorCode::kFailedPrecondition, "reading"));
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const RepairReport planned,
      Repair(*store, mirror,
             {.dry_run = true, .progress = {}, .record_progress = {}, .write_progress = {}}));
  EXPECT_EQ(planned.repaired_chunks, 1u);
  EXPECT_EQ(Segments(), segments);
}

/// A base in one segment, and versions of it in others: step n has n - 1 deltas.
class RepairOfDeltasTest : public StoreTest {
 protected:
  static constexpr uint64_t kSteps = 6;
  using Sources = std::vector<std::unique_ptr<CheckpointStore>>;

  void SetUp() override {
    StoreTest::SetUp();
    for (uint64_t step = 1; step <= kSteps; ++step) {
      SaveAndKeep(step, {{"w", &tensor_}}, {.max_deltas = 8});
      for (size_t i = step; i < tensor_.bytes.size(); i += 1009) tensor_.bytes[i] ^= std::byte{1};
    }
    ASSERT_EQ(OnlyChunk(kSteps).deltas.size(), kSteps - 1);
  }

  Sources MirrorOf(const std::vector<uint64_t>& steps) {
    const std::string path = directory / "mirror";
    auto mirror = CheckpointStore::Open(path, kv::OpenMode::kWrite);
    EXPECT_TRUE(testing::IsOk(mirror));
    kv::CopyOptions options;
    options.steps = steps;
    EXPECT_TRUE(testing::IsOk(kv::CopySteps(store->kv(), (*mirror)->kv(), options)));
    mirror->reset();
    Sources sources;
    sources.push_back(*CheckpointStore::Open(path, kv::OpenMode::kRead));
    return sources;
  }

  void Flip(const kv::Extent& extent, uint64_t byte) {
    const std::string file = FileOf(extent);
    store.reset();
    FlipByte(file, extent.offset_bytes + byte);
    Reopen();
  }

  /// Repairs, and expects the same of a dry run before it.
  RepairReport ExpectRepaired(const Sources& sources) {
    const auto planned =
        Repair(*store, sources,
               {.dry_run = true, .progress = {}, .record_progress = {}, .write_progress = {}});
    const auto report = Repair(*store, sources);
    EXPECT_TRUE(testing::IsOk(planned));
    EXPECT_TRUE(testing::IsOk(report));
    if (!planned || !report) return {};
    EXPECT_THAT(report->remaining, IsEmpty());
    EXPECT_EQ(planned->written_bytes, report->written_bytes);
    EXPECT_EQ(planned->repaired_chunks, report->repaired_chunks);
    ExpectAllSteps();
    Reopen();
    ExpectAllSteps();
    return *report;
  }

  TestTensor tensor_{DType::kBFloat16, {500'000}, 1};
};

TEST_F(RepairOfDeltasTest, APageOfTheBaseIsReplacedOnceForAllVersions) {
  const Sources mirror = MirrorOf({1, 2, 3, 4, 5, 6});
  Flip(OnlyChunk(1).extents.front(), 300'000);
  const RepairReport report = ExpectRepaired(mirror);
  EXPECT_EQ(report.damaged_chunks, kSteps);
  EXPECT_EQ(report.repaired_chunks, kSteps);
  EXPECT_EQ(report.written_bytes, tensor_.bytes.size());
  EXPECT_EQ(OnlyChunk(kSteps).deltas.size(), kSteps - 1);
}

TEST_F(RepairOfDeltasTest, ADamagedPageDigestIsReplacedWithoutASource) {
  const kv::Extent base = OnlyChunk(1).extents.front();
  const std::string file = FileOf(base);
  store.reset();
  FlipByte(file, base.page_digests_offset_bytes + 9);
  Reopen();
  const RepairReport report = ExpectRepaired({});
  EXPECT_EQ(report.damaged_chunks, 0u);
  EXPECT_EQ(report.written_bytes, tensor_.bytes.size());
  EXPECT_EQ(OnlyChunk(kSteps).deltas.size(), kSteps - 1);
}

TEST_F(RepairOfDeltasTest, ThePagesOfABaseAreFoundInAnotherStep) {
  const Sources mirror = MirrorOf({1});
  DeleteKept({1, 2});
  Flip(OnlyChunk(4).extents.front(), 300'000);
  EXPECT_EQ(ExpectRepaired(mirror).written_bytes, tensor_.bytes.size());
  EXPECT_EQ(OnlyChunk(kSteps).deltas.size(), kSteps - 1);
}

TEST_F(RepairOfDeltasTest, APageOfADeltaIsReplaced) {
  const Sources mirror = MirrorOf({4});
  const kv::Extent delta = OnlyChunk(4).deltas[1];  // since step 3
  Flip(delta, delta.length_bytes / 2);
  const RepairReport report = ExpectRepaired(mirror);
  EXPECT_EQ(report.damaged_chunks, kSteps - 2);
  EXPECT_EQ(report.written_bytes, delta.length_bytes);
  EXPECT_EQ(OnlyChunk(kSteps).deltas.size(), kSteps - 1);
}

TEST_F(RepairOfDeltasTest, AMissingBaseIsWrittenOnceFromItsOwnVersion) {
  const Sources mirror = MirrorOf({1});
  fs::remove(FileOf(OnlyChunk(1).extents.front()));
  Reopen();
  const RepairReport report = ExpectRepaired(mirror);
  EXPECT_EQ(report.repaired_chunks, kSteps);
  EXPECT_EQ(report.written_bytes, tensor_.bytes.size());
}

TEST_F(RepairOfDeltasTest, VersionsWithAMissingDeltaAreWrittenInFull) {
  const Sources mirror = MirrorOf({5, 6});
  fs::remove(FileOf(OnlyChunk(5).deltas[3]));
  Reopen();
  const RepairReport report = ExpectRepaired(mirror);
  EXPECT_EQ(report.repaired_chunks, 2u);  // of steps 5 and 6
  EXPECT_EQ(report.written_bytes, 2 * tensor_.bytes.size());
  EXPECT_THAT(OnlyChunk(kSteps).deltas, IsEmpty());
}

TEST_F(RepairOfDeltasTest, VersionsWithoutACopyRemainAndTheOthersAreMoved) {
  const Sources mirror = MirrorOf({3});
  const kv::Extent delta = OnlyChunk(5).deltas[3];  // since step 5
  Flip(delta, delta.length_bytes / 2);
  Flip(OnlyChunk(1).extents.front(), 300'000);
  CAIRN_ASSERT_OK_AND_ASSIGN(const RepairReport report, Repair(*store, mirror));
  EXPECT_EQ(report.repaired_chunks, 4u);  // of steps 1 to 4
  EXPECT_THAT(report.remaining, ElementsAre(Field(&Error::key, "w"), Field(&Error::key, "w")));
  for (const uint64_t step : {1, 2, 3, 4}) EXPECT_EQ(LoadBytes(step, "w"), kept[step]["w"]);
  EXPECT_THAT(VerifyAll(5), Not(IsEmpty()));
}

}  // namespace
}  // namespace cairn::core
