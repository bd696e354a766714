// Checks the root, pages, tables, segments and usage.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "kv/base/step_info.h"
#include "kv/read/internal/snapshot_state.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/state/internal/live_bytes.h"
#include "kv/state/internal/store_identity.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/internal/object_reader.h"

namespace cairn::kv::internal {
namespace {

// --- segments

/// Checks that bytes [begin, end) of a segment are zero: no digest covers them, but they were
/// written as zeros.
Result<void> CheckGap(const ObjectReader& file, uint64_t begin, uint64_t end) {
  std::vector<std::byte> buffer(std::min<uint64_t>(end - begin, 1 << 16));
  while (begin < end) {
    const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), end - begin));
    CAIRN_TRY(file.ReadAt(begin, part));
    CAIRN_TRY(CheckZeros(part, begin, file.path()));
    begin += part.size();
  }
  return {};
}

Result<void> CheckSegment(const SnapshotState& snapshot, const SegmentInfo& info) {
  CAIRN_TRY_ASSIGN(const ObjectReader file,
                   ObjectReader::Open(snapshot.storage, SegmentObject(info)));
  CAIRN_TRY_ASSIGN(const SegmentDescription segment,
                   ReadSegmentDescription(file, snapshot.uuid, info));
  uint64_t at = kSegmentHeaderBytes;
  for (const Extent& extent : segment.extents) {
    CAIRN_TRY(CheckGap(file, at, extent.offset_bytes));
    at = extent.offset_bytes + extent.length_bytes;
  }
  return CheckGap(file, at, segment.trailer.page_digests_offset_bytes);
}

// --- steps

/// Checks what a snapshot refers to, each object once.
class Checker {
 public:
  Checker(const SnapshotState& snapshot, const std::function<void(Damage)>& damage)
      : snapshot_(snapshot), damage_(damage) {}

  Result<void> Run() {
    Report(CheckIdentity(), "");
    const auto entries = snapshot_.AllEntries();
    if (!entries) {
      Report(std::unexpected(entries.error()), "");
      return {};
    }
    for (const StepEntryPtr& entry : *entries) {
      for (const TableInfo& table : entry->tables) CheckTable(table);
      Report(CheckStep(*entry), "", entry->info.step);
    }
    for (const auto& [id, info] : segments_) {
      Report(CheckSegment(snapshot_, info),
             ObjectPath(snapshot_.storage->address(), SegmentObject(info)));
    }
    return {};
  }

 private:
  Result<void> CheckIdentity() {
    CAIRN_TRY_ASSIGN(const Uuid uuid, ReadIdentity(*snapshot_.storage));
    if (uuid == snapshot_.uuid) return {};
    return Fail(ErrorCode::kDataLoss, "CAIRN has changed since the store was opened");
  }

  /// Reports the error of a check; kNotFound if a deletion or a compaction explains it.
  void Report(const Result<void>& result, const std::string& file,
              std::optional<uint64_t> step = std::nullopt) {
    if (result) return;
    Error error = result.error();
    if (!file.empty()) error = std::move(error).WithFile(file);
    if (step) error = std::move(error).WithStep(*step);
    if (error.code == ErrorCode::kNotFound) error = snapshot_.Explain(std::move(error));
    damage_(Damage{std::move(error)});
  }

  void CheckTable(const TableInfo& table) {
    if (!checked_tables_.insert(table.id).second) return;
    const auto check = [&]() -> Result<void> {
      CAIRN_TRY_ASSIGN(const auto reader, TableReader::Open(snapshot_.storage, table));
      return reader->Verify();
    };
    Report(check(),
           ObjectPath(snapshot_.storage->address(), ObjectName(ObjectKind::kTable, table.id)));
  }

  /// Compares the records of a step with its entry.
  Result<void> CheckStep(const StepEntry& entry) {
    CAIRN_TRY_ASSIGN(const auto open, snapshot_.Open(entry.info));
    CAIRN_TRY_ASSIGN(const auto record, open->tables.Get(TableKey(Column::kSteps, "")));
    if (!record) return Fail(ErrorCode::kDataLoss, "the tables of the step have no step record");
    CAIRN_TRY_ASSIGN(const StepInfo info, DecodeStep(*record));
    if (info.step != entry.info.step || info.attempt != entry.info.attempt) {
      return Fail(ErrorCode::kDataLoss, "the tables are those of another step");
    }
    CAIRN_TRY_ASSIGN(std::vector<SegmentInfo> segments, snapshot_.SegmentsOf(entry.info));
    for (SegmentInfo& segment : segments) {
      segments_.emplace(segment.segment_id, std::move(segment));
    }
    return CheckUsage(*open);
  }

  /// Compares the usage that the chunk records imply with the recorded one.
  Result<void> CheckUsage(const SnapshotState::OpenStep& step) {
    LiveBytes implied;
    uint64_t chunk_count = 0;
    CAIRN_TRY(
        step.tables.Scan(ColumnPrefix(Column::kChunks),
                         [&](std::string_view, std::span<const std::byte> record) -> Result<bool> {
                           ++chunk_count;
                           // core reports damaged chunks, with their key
                           const auto extents = DecodeChunkExtents(record);
                           if (extents) implied.Add(*extents);
                           // The usage is not damaged if a newer Cairn wrote the chunk.
                           if (!extents && extents.error().code == ErrorCode::kUnimplemented) {
                             return Fail(extents.error());
                           }
                           return true;
                         }));
    if (chunk_count != step.entry->info.chunk_count) {
      return Fail(ErrorCode::kDataLoss,
                  fmt::format("the step counts {} chunks, its tables contain {}",
                              step.entry->info.chunk_count, chunk_count));
    }
    CAIRN_TRY_ASSIGN(const auto usage, snapshot_.UsageOf(step));
    std::map<uint64_t, uint64_t> recorded;
    for (const SegmentUse& use : usage) {
      recorded[use.segment.id] = use.live_bytes;
      const auto segment = segments_.find(use.segment.id);
      if (segment == segments_.end() || IdOf(segment->second) != use.segment) {
        return Fail(ErrorCode::kDataLoss, "the usage names another segment than its record");
      }
    }
    if (implied.Sorted() == recorded) return {};
    return Fail(
        ErrorCode::kDataLoss,
        "the live bytes that the step records for its segments are not those of its chunks");
  }

  const SnapshotState& snapshot_;
  const std::function<void(Damage)>& damage_;
  std::set<ObjectId> checked_tables_;
  std::map<uint64_t, SegmentInfo> segments_;
};

}  // namespace
}  // namespace cairn::kv::internal

namespace cairn::kv {

Result<void> Snapshot::VerifyFiles(const std::function<void(Damage)>& damage) const {
  return internal::Checker(*state_, damage).Run();
}

}  // namespace cairn::kv
