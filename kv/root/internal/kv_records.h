#pragma once
/// The FlatBuffers records that kv reads and writes. Every decoder returns kDataLoss for a damaged
/// record and kUnimplemented for one of a newer format version.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/chunk_record.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/base/extents.h"
#include "kv/base/key.h"
#include "kv/base/record_check.h"
#include "kv/base/step_info.h"
#include "kv/root/internal/root_record.h"
#include "kv/table/internal/table_file.h"
#include "kv/table/internal/table_reader.h"

namespace cairn::kv::internal {

/// Copies the finished buffer.
std::vector<std::byte> TakeBytes(const flatbuffers::FlatBufferBuilder& builder);

std::vector<std::byte> EncodeStep(const StepInfo& info);
Result<StepInfo> DecodeStep(std::span<const std::byte> record);

/// Returns the segment without what is known only when it is sealed, but with its name.
SegmentInfo NewSegmentInfo(const ObjectId& id);
/// Returns the complete id of the segment, which its name contains.
ObjectId IdOf(const SegmentInfo& info);
/// Returns the name of the object.
std::string SegmentObject(const SegmentInfo& info);
std::vector<std::byte> EncodeSegment(const SegmentInfo& info);
Result<SegmentInfo> DecodeSegment(std::span<const std::byte> record);
/// Returns the segment from the tables of a step that uses it. kDataLoss: they have no record of
/// it. Returns the errors of TableStack::Get, too.
Result<SegmentInfo> ReadSegmentRecord(const TableStack& tables, uint64_t segment_id);

/// Encodes ChunkRecords. Cost: no allocation, and a copy of a few fields if the record before had
/// the same fields, which nearly all records of a step have. Threads: one.
class ChunkEncoder {
 public:
  /// Returns the record, aligned to 8 bytes and valid until the next call. Requires extents that
  /// kv::ReadExtents accepts.
  std::span<const std::byte> Encode(const ChunkEntry& entry);

 private:
  void Build(const ChunkEntry& entry);

  flatbuffers::FlatBufferBuilder builder_;  // contains the last record
  // The fields of the last record, if they have one length in all records with these values.
  std::optional<std::pair<size_t, uint8_t>> dimensions_and_page_bits_;
};
/// Encodes one record. See ChunkEncoder.
std::vector<std::byte> EncodeChunk(const ChunkEntry& entry);
/// Adds `bytes` to the positions of the page digests of the extents that are in this segment.
/// Requires a record that EncodeChunk returned.
void MovePageDigests(std::span<std::byte> record, uint64_t segment_id, uint64_t bytes);
Result<ChunkEntry> DecodeChunk(std::span<const std::byte> record);
/// Returns only the extents. See kv::ReadExtents.
Result<ChunkExtents> DecodeChunkExtents(std::span<const std::byte> record);

// The column kUsage: segment id -> epoch of the segment, and live bytes.
std::array<std::byte, 16> EncodeUsage(const SegmentUse& use);
Result<SegmentUse> DecodeUsage(std::string_view key, std::span<const std::byte> record);
/// Returns all records of the column. Returns the errors of TableStack::Scan.
Result<std::vector<SegmentUse>> ReadUsage(const TableStack& tables);

// The column kTables: the tables of the step after the one that contains the record.
std::vector<std::byte> EncodeTables(std::span<const TableInfo> after);
Result<std::vector<TableInfo>> DecodeTables(std::span<const std::byte> record);

}  // namespace cairn::kv::internal
