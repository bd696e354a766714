// A compaction changes where bytes are stored, and nothing else.

#include "kv/compact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kv/base/key.h"
#include "kv/base/options.h"
#include "kv/read/segment_space.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/root_log.h"
#include "kv/state/internal/store_state.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/internal/object_names.h"
#include "kv/store.h"
#include "kv/table/internal/table_reader.h"
#include "kv/table/internal/table_writer.h"
#include "tests/kv/byte_payload.h"
#include "tests/kv/sample_step.h"
#include "tests/kv/store_checks.h"
#include "tests/support/fault_hook.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::kv {
namespace {

using cairn::testing::FaultPass;
using cairn::testing::IsError;
using cairn::testing::ScopedFaults;
using cairn::testing::ScopedTempDir;
using internal::FaultyStorage;
using internal::MemoryStorage;
using internal::StorageCall;
using internal::StorageFault;
using internal::StorageOperation;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace cairn::kv::testing;  // NOLINT(google-build-using-namespace)

constexpr std::chrono::milliseconds kNoGrace{0};
constexpr std::chrono::milliseconds kLong{3'600'000};

class CompactTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(kNoGrace); }

  void Open(std::chrono::milliseconds grace) {
    store_.reset();
    CAIRN_ASSERT_OK_AND_ASSIGN(store_, Store::Open(storage_, OpenMode::kWrite, {.grace = grace}));
  }
  void Save(uint64_t step, uint64_t version = 0) {
    const SampleStep sample = MakeSample(step, version, kShape);
    CAIRN_ASSERT_OK(SaveSample(*store_, sample, /*overwrite=*/true));
    expected_[step] = sample;
  }
  void Delete(const std::vector<uint64_t>& steps) {
    CAIRN_ASSERT_OK(store_->Delete(steps));
    for (const uint64_t step : steps) expected_.erase(step);
  }
  /// Saves steps 1 to `count` and deletes all but every fifth.
  void SaveAndDelete(uint64_t count) {
    std::vector<uint64_t> deleted;
    for (uint64_t step = 1; step <= count; ++step) {
      Save(step);
      if (step % 5 != 0) deleted.push_back(step);
    }
    Delete(deleted);
  }
  CompactReport Compact(const CompactOptions& options = {}) {
    const auto report = kv::Compact(*store_, options);
    EXPECT_TRUE(cairn::testing::IsOk(report));
    return report.value_or(CompactReport());
  }
  /// Compares all steps with what was saved, and checks every object.
  void ExpectUnchanged() {
    ExpectSteps(*store_, expected_);
    ExpectSound(*store_);
  }
  /// Adds the records of `base`, so that the new step refers to its segments.
  void AddRecordsOf(const Snapshot& snapshot, const StepInfo& base, StepWriter& writer) {
    for (const Column column : {Column::kTensors, Column::kValues}) {
      CAIRN_ASSERT_OK(snapshot.Scan(
          column, base, "",
          [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
            CAIRN_TRY(writer.AddRecord(column, key, record));
            return true;
          }));
    }
    CAIRN_ASSERT_OK(
        snapshot.Scan(Column::kChunks, base, "",
                      [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                        CAIRN_TRY_ASSIGN(const ChunkEntry chunk, internal::DecodeChunk(record));
                        CAIRN_TRY(writer.AddChunk(key, chunk, /*reused=*/true));
                        return true;
                      }));
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto structure, snapshot.GetStructure(base));
    CAIRN_ASSERT_OK(writer.SetStructure(*structure));
  }
  static StepSummary SummaryOf(const StepInfo& base) {
    return {.base_step = base.step,
            .tensor_count = base.tensor_count,
            .value_count = base.value_count,
            .logical_bytes = base.logical_bytes};
  }
  /// Length of all segments in the storage.
  uint64_t SegmentBytes() {
    uint64_t bytes = 0;
    const std::vector<std::string> names = storage_->List("segments/").value();
    for (const std::string& name : names) {
      bytes += storage_->Size(name).value();
    }
    return bytes;
  }
  void RebuildAndOpen() {
    CAIRN_ASSERT_OK_AND_ASSIGN(const RebuildReport report,
                               Store::Rebuild(std::static_pointer_cast<Storage>(storage_)));
    lost_ = report.lost;
    Open(kNoGrace);
  }
  /// Compares before and after an open, which removes what waits for its grace period.
  void ReopenAndExpectUnchanged() {
    ExpectUnchanged();
    CAIRN_ASSERT_OK(store_->Close());
    Open(kNoGrace);
    ExpectNoLeftovers(storage_);
    ExpectUnchanged();
  }

  // Half of a step is the same in all steps, and so is half of the other half.
  static constexpr SampleShape kShape{.tensor_count = 5, .largest_bytes = 600'000};
  std::shared_ptr<MemoryStorage> storage_ = std::make_shared<MemoryStorage>("memory");
  std::unique_ptr<Store> store_;
  Steps expected_;
  std::vector<Error> lost_;  // in the last rebuild
};

TEST_F(CompactTest, MovesWhatStepsUse) {
  SaveAndDelete(20);
  const uint64_t before_bytes = SegmentBytes();
  const std::vector<std::string> names = storage_->List("").value();
  const CompactReport dry = Compact({.dry_run = true});
  EXPECT_EQ(storage_->List("").value(), names);
  const CompactReport report = Compact();
  EXPECT_EQ(dry.old_segments, report.old_segments);
  EXPECT_EQ(dry.new_segments, 0);
  ExpectUnchanged();
  EXPECT_EQ(Compact().old_segments, 0) << "there is nothing left to do";
  EXPECT_GT(report.old_segments, 0);
  EXPECT_GT(report.moved_bytes, 0);
  EXPECT_EQ(report.rewritten_steps, expected_.size());
  EXPECT_EQ(report.segment_bytes, before_bytes);
  ReopenAndExpectUnchanged();
  EXPECT_LT(SegmentBytes(), before_bytes);
  EXPECT_LE(static_cast<double>(SegmentBytes()), 1.2 * static_cast<double>(report.live_bytes));
}

TEST_F(CompactTest, TheSpaceOfSegmentsIsExact) {
  SaveAndDelete(20);
  Save(20, /*version=*/1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  // The steps that use each byte, one by one.
  std::map<uint64_t, std::vector<std::set<uint64_t>>> users;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto steps, snapshot->Steps());
  for (const StepInfo& step : steps) {
    CAIRN_ASSERT_OK(snapshot->Scan(
        Column::kChunks, step, "",
        [&](std::string_view, std::span<const std::byte> record) -> Result<bool> {
          CAIRN_TRY_ASSIGN(const ChunkExtents extents, internal::DecodeChunkExtents(record));
          extents.ForEach([&](const Extent& extent) {
            auto& bytes = users[extent.segment_id];
            bytes.resize(std::max(bytes.size(), extent.offset_bytes + extent.length_bytes));
            for (uint64_t i = 0; i < extent.length_bytes; ++i) {
              bytes[extent.offset_bytes + i].insert(step.step);
            }
          });
          return true;
        }));
  }
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto spaces, MeasureSegments(*snapshot));
  EXPECT_EQ(spaces.size(), users.size());
  uint64_t shared_bytes = 0, live_bytes = 0, dead_bytes = 0, overhead_bytes = 0;
  for (const SegmentSpace& space : spaces) {
    const auto& bytes = users.at(space.segment.segment_id);
    EXPECT_EQ(space.live_bytes,
              std::ranges::count_if(bytes, [](const auto& of_byte) { return !of_byte.empty(); }));
    EXPECT_EQ(space.shared_bytes,
              std::ranges::count_if(bytes, [](const auto& of_byte) { return of_byte.size() > 1; }));
    shared_bytes += space.shared_bytes;
    live_bytes += space.live_bytes;
    dead_bytes += space.dead_bytes();
    overhead_bytes += space.overhead_bytes();
  }
  EXPECT_GT(shared_bytes, 0);
  EXPECT_LT(shared_bytes, live_bytes);
  EXPECT_GT(dead_bytes, 0);
  EXPECT_EQ(live_bytes + dead_bytes + overhead_bytes, SegmentBytes());
  EXPECT_EQ(Compact({.dry_run = true}).live_bytes, live_bytes);
}

TEST_F(CompactTest, JoinsSmallSegments) {
  const SampleShape small{.tensor_count = 2, .largest_bytes = 4000};
  for (uint64_t step = 1; step <= 30; ++step) {
    expected_[step] = MakeSample(step, 0, small);
    expected_[step].tensors["w001"] = RandomBytes(step, 3000);
    CAIRN_ASSERT_OK(SaveSample(*store_, expected_[step]));
  }
  const CompactReport report = Compact();
  EXPECT_EQ(report.old_segments, 30);
  EXPECT_EQ(report.new_segments, 1);
  ExpectUnchanged();
}

TEST_F(CompactTest, CommitsSeveralTimes) {
  // Each shape has other frozen tensors, which remain in the segment of the odd step.
  for (uint32_t tensors = 5; tensors < 10; ++tensors) {
    for (const uint64_t step : {2 * tensors - 1, 2 * tensors}) {
      expected_[step] = MakeSample(step, 0, {.tensor_count = tensors, .largest_bytes = 500'000});
      CAIRN_ASSERT_OK(SaveSample(*store_, expected_[step]));
    }
  }
  Delete({9, 11, 13, 15, 17});
  const CompactReport report = Compact({.commit_bytes = 1});
  EXPECT_EQ(report.new_segments, 5);
  ReopenAndExpectUnchanged();
}

TEST_F(CompactTest, MovesLittleAtOnceUnderALimit) {
  SaveAndDelete(10);
  constexpr uint64_t kRate = 1'000'000;
  uint64_t done_bytes = 0;
  uint64_t longest = 0;
  const auto note = [&](uint64_t now_bytes, uint64_t) {
    longest = std::max(longest, now_bytes - done_bytes);
    done_bytes = now_bytes;
    return true;
  };
  const CompactReport report = Compact({.max_bytes_per_second = kRate, .progress = note});
  EXPECT_EQ(done_bytes, report.moved_bytes);
  EXPECT_GT(longest, 0);
  EXPECT_LT(longest, 2 * kRate / 10);  // the last piece of a batch may exceed the tenth
  EXPECT_GT(report.moved_bytes, 2 * kRate / 10);
  ExpectUnchanged();
}

TEST_F(CompactTest, KeepsTheGenerationOfSteps) {
  SaveAndDelete(10);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto before, store_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo old_info, before->FindStep(5));
  Compact();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto after, store_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo new_info, after->FindStep(5));
  EXPECT_EQ(new_info.generation, old_info.generation);
  EXPECT_GT(new_info.rewritten, old_info.rewritten);
  EXPECT_FALSE(new_info.HasRecordsOf(old_info));
  // Code that has found the step before the compaction finds its contents in the newest root.
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto with, store_->SnapshotWith(old_info));
  ExpectSample(*with, expected_[5], 5);
}

TEST_F(CompactTest, ReadersOfAnOlderRootContinue) {
  Open(kLong);
  SaveAndDelete(10);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto before, store_->Latest());
  Compact();
  ExpectSample(*before, expected_[5], 5);
}

TEST_F(CompactTest, SegmentsThatAnOlderRootStatesAreThoseOfTheNewTables) {
  SaveAndDelete(10);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto before, ReadLatest(storage_));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo info, before->FindStep(5));
  Compact();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto after, store_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto expected, after->SegmentsOf(info));
  std::unordered_set<uint64_t> known;
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto segments, before->FurtherSegmentsOf(info, known));
  EXPECT_THAT(segments, SizeIs(expected.size()));
  for (const SegmentInfo& segment : expected) EXPECT_TRUE(known.contains(segment.segment_id));
}

TEST_F(CompactTest, ManySteps) {
  const SampleShape tiny{.tensor_count = 3, .largest_bytes = 6000};
  std::vector<uint64_t> deleted;
  for (uint64_t step = 1; step <= 200; ++step) {
    expected_[step] = MakeSample(step, 0, tiny);
    CAIRN_ASSERT_OK(SaveSample(*store_, expected_[step]));
    if (step % 2 == 0) deleted.push_back(step);
  }
  Delete(deleted);
  EXPECT_EQ(Compact().rewritten_steps, 100);
  ReopenAndExpectUnchanged();
  Save(201);
  ExpectUnchanged();
}

TEST_F(CompactTest, ASaveThatBeganBeforeKeepsItsBytes) {
  Open(kLong);
  SaveAndDelete(10);
  // Everything the new step has is taken from the records of step 10 as they were.
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo base, snapshot->FindStep(10));
  CAIRN_ASSERT_OK_AND_ASSIGN(std::unique_ptr<StepWriter> writer, store_->Begin(11, {}));
  Compact();
  AddRecordsOf(*snapshot, base, *writer);
  CAIRN_ASSERT_OK(writer->Commit(SummaryOf(base)));
  writer.reset();
  expected_[11] = expected_[10];
  expected_[11].step = 11;
  ReopenAndExpectUnchanged();
  // The next compaction moves what this step has kept.
  EXPECT_GT(Compact().old_segments, 0);
  ReopenAndExpectUnchanged();
}

// The storage reports that it cannot remove the old segments, and removes them later. A save that
// began before the compaction was committed with references to them.
TEST_F(CompactTest, ASaveDoesNotReferToASegmentWhoseRemovalHasBegun) {
  const auto faulty = std::make_shared<FaultyStorage>(std::make_shared<MemoryStorage>("test"));
  CAIRN_ASSERT_OK_AND_ASSIGN(store_, Store::Open(faulty, OpenMode::kWrite, {.grace = kNoGrace}));
  SaveAndDelete(10);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo base, snapshot->FindStep(10));
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StepWriter> writer, store_->Begin(11, {}));
  AddRecordsOf(*snapshot, base, *writer);
  faulty->SetPlan([](const StorageCall& call) {
    const bool is_removal = call.operation == StorageOperation::kRemove;
    return is_removal ? StorageFault::kRefuse : StorageFault::kNone;
  });
  Compact();
  EXPECT_THAT(writer->Commit(SummaryOf(base)), IsError(ErrorCode::kConflict, "save again"));
  ExpectUnchanged();
}

// The disk is full in the root of a save. Its commit removes what is due: the segments to which the
// table that it has written refers.
TEST_F(CompactTest, ASaveOnAFullDiskDoesNotReferToASegmentThatItsCommitHasRemoved) {
  const ScopedTempDir dir;
  CAIRN_ASSERT_OK_AND_ASSIGN(store_,
                             Store::Open(dir / "store", OpenMode::kWrite, {.grace = kLong}));
  SaveAndDelete(10);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StepInfo base, snapshot->FindStep(10));
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StepWriter> writer, store_->Begin(11, {}));
  AddRecordsOf(*snapshot, base, *writer);
  Compact();
  internal::StoreAccess::StateOf(*store_).options.grace = kNoGrace;  // as if the period had passed
  bool is_full = true;
  const ScopedFaults faults([&](const FaultPass& pass, uint32_t) {
    is_full = is_full && pass.point != "segments.remove";
    return is_full && pass.point == "roots.create" ? ENOSPC : 0;
  });
  EXPECT_THAT(writer->Commit(SummaryOf(base)), IsError(ErrorCode::kConflict, "save again"));
  EXPECT_TRUE(faults.fired());
  ExpectUnchanged();
}

TEST_F(CompactTest, StepsMayChangeMeanwhile) {
  SaveAndDelete(20);
  bool is_first = true;
  Compact({.progress = [&](uint64_t done_bytes, uint64_t) {
    if (done_bytes == 0 || !std::exchange(is_first, false)) return true;
    Delete({5});
    Save(10, /*version=*/1);
    Save(21);
    return true;
  }});
  EXPECT_FALSE(is_first);
  ReopenAndExpectUnchanged();
}

// Without a grace period, what the compaction reads may be gone at each of its reads.
TEST_F(CompactTest, ContinuesIfTheStepsThatItReadsAreDeleted) {
  int calls = 0;
  for (int n = 1; calls >= n - 1; ++n) {
    SCOPED_TRACE("at call " + std::to_string(n));
    SaveAndDelete(20);
    calls = 0;
    const CompactReport report = Compact({.max_dead = 0, .progress = [&](uint64_t, uint64_t) {
                                            if (++calls == n) Delete({5, 10, 15});
                                            return true;
                                          }});
    ExpectUnchanged();
    EXPECT_LE(report.moved_bytes, report.segment_bytes);
    if (HasFailure()) return;
  }
  EXPECT_GT(calls, 3);
}

TEST_F(CompactTest, WhatItWroteIsRemovedIfItStops) {
  SaveAndDelete(20);
  const std::vector<std::string> names = storage_->List("").value();
  const auto stopped = kv::Compact(
      *store_, {.progress = [](uint64_t done_bytes, uint64_t) { return done_bytes == 0; }});
  EXPECT_THAT(stopped, IsError(ErrorCode::kCancelled, "stopped"));
  EXPECT_EQ(storage_->List("").value(), names);
  ExpectUnchanged();
}

TEST_F(CompactTest, DamagedPagesAreNotMoved) {
  SaveAndDelete(20);
  const std::vector<std::string> segments = storage_->List("segments/").value();
  for (const std::string& name : segments) {
    std::vector<std::byte> bytes = storage_->Read(name, ~uint64_t{0}).value();
    for (size_t at = 4096; at < bytes.size() / 2; at += 1000) bytes[at] ^= std::byte{1};
    CAIRN_ASSERT_OK(storage_->Put(name, bytes));
  }
  EXPECT_THAT(kv::Compact(*store_), IsError(ErrorCode::kDataLoss, "does not match its digest"));
  EXPECT_EQ(storage_->List("segments/").value(), segments);
}

TEST_F(CompactTest, NeedsTheRightToWrite) {
  Save(1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto reader, Store::Open(storage_, OpenMode::kRead));
  EXPECT_THAT(kv::Compact(*reader), IsError(ErrorCode::kFailedPrecondition, "for reading only"));
  EXPECT_THAT(kv::Compact(*store_, {.max_dead = 1.5}),
              IsError(ErrorCode::kInvalidArgument, "from 0 to 1"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto other,
                             Store::Open(storage_, OpenMode::kWrite, {.take_over = true}));
  EXPECT_THAT(kv::Compact(*store_), IsError(ErrorCode::kConflict, "taken over"));
}

TEST_F(CompactTest, OnlyOneRunsAtATime) {
  SaveAndDelete(10);
  Result<CompactReport> second = CompactReport();
  Compact({.progress = [&](uint64_t, uint64_t) {
    second = kv::Compact(*store_);
    return true;
  }});
  EXPECT_THAT(second, IsError(ErrorCode::kFailedPrecondition, "another compaction"));
}

TEST_F(CompactTest, CanBeRebuiltFromTheRootBeforeIt) {
  SaveAndDelete(20);
  const std::vector<std::string> before = storage_->List("roots/").value();
  EXPECT_EQ(Compact().rewritten_steps, expected_.size());  // removes the old tables, too
  CAIRN_ASSERT_OK(store_->Close());
  const std::vector<std::string> after = storage_->List("roots/").value();
  for (const std::string& root : after) {
    if (std::ranges::find(before, root) != before.end()) continue;
    CAIRN_ASSERT_OK(storage_->Remove(root));
  }
  CAIRN_ASSERT_OK(storage_->Put(*std::ranges::min_element(after), RandomBytes(1, 100)));
  RebuildAndOpen();
  EXPECT_THAT(lost_, IsEmpty());
  ExpectUnchanged();
}

TEST_F(CompactTest, CanBeRebuiltWithoutRoots) {
  SaveAndDelete(20);
  Compact();
  CAIRN_ASSERT_OK(store_->Close());
  Open(kNoGrace);  // removes the old segments and tables
  CAIRN_ASSERT_OK(store_->Close());
  RemoveObjects(*storage_, "roots/");
  RebuildAndOpen();
  ExpectUnchanged();
}

TEST_F(CompactTest, IsNotMistakenForAStepWithoutTables) {
  SaveAndDelete(20);
  Compact();
  CAIRN_ASSERT_OK(store_->Close());
  for (const char* const folder : {"roots/", "tables/"}) RemoveObjects(*storage_, folder);
  RebuildAndOpen();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto snapshot, store_->Latest());
  for (const uint64_t step : snapshot->step_numbers()) EXPECT_TRUE(expected_.contains(step));
}

// Records refer to a segment by the first 64 bits of its id, so the payload of one would be taken
// for that of the other, and lost.
TEST_F(CompactTest, StepsWhoseSegmentsHaveEqualReferencesAreRefused) {
  Save(1);
  Save(2);
  store_.reset();
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto newest, internal::FindNewest(*storage_));
  internal::Root next = internal::Successor(*newest, std::chrono::hours(24));
  internal::StepEntry entry = *next.recent.back();
  internal::OpenTables tables(storage_);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto stack, tables.OpenStack(entry.tables));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto table, internal::TableWriter::Create(
                                                   *storage_, internal::NewObjectId(next.epoch)));
  CAIRN_ASSERT_OK(stack.Scan("", [&](std::string_view key, auto value) -> Result<bool> {
    std::vector<std::byte> record(value.begin(), value.end());
    if (key == TableKey(Column::kTables, "")) record = internal::EncodeTables({});
    if (key.starts_with(ColumnPrefix(Column::kSegments))) {
      CAIRN_TRY_ASSIGN(SegmentInfo info, internal::DecodeSegment(value));
      ++info.id_tail;
      record = internal::EncodeSegment(info);
    }
    CAIRN_TRY(table->Add(key, record));
    return true;
  }));
  CAIRN_ASSERT_OK_AND_ASSIGN(const internal::TableInfo written, table->Finish());
  entry.tables = {written};
  next.recent.back() = std::make_shared<const internal::StepEntry>(entry);
  ASSERT_EQ(internal::CommitRoot(*storage_, next).state,
            internal::CommitOutcome::State::kCommitted);
  Open(kNoGrace);
  EXPECT_THAT(kv::Compact(*store_, {.max_dead = 0}),
              IsError(ErrorCode::kFailedPrecondition, "begin with"));
}

}  // namespace
}  // namespace cairn::kv
