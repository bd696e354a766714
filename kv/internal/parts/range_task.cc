// Each field is an entry, whose column is that of the records that it is about.

#include "kv/internal/parts/range_task.h"

#include <fmt/format.h>

#include "kv/internal/parts/attempt_outcome.h"
#include "kv/internal/records/kv_records.h"
#include "schema/little_endian.h"

namespace cairn::kv::internal {
namespace {

using schema::GetLittleEndian;
using schema::PutLittleEndian;

constexpr size_t kReadBytes = 32;
constexpr size_t kUseBytes = 16;

PartHeader HeaderOf(PartHeader header, uint32_t range) {
  header.rank = range;
  header.is_indexed = false;
  return header;
}

std::vector<std::byte> EncodeNumber(uint64_t number) {
  std::vector<std::byte> bytes(8);
  PutLittleEndian(bytes, 0, number);
  return bytes;
}

std::vector<std::byte> EncodeReads(const std::vector<SectionRead>& reads) {
  std::vector<std::byte> bytes(kReadBytes * reads.size());
  size_t at = 0;
  for (const SectionRead& read : reads) {
    PutLittleEndian(bytes, at, read.rank);
    PutLittleEndian(bytes, at + 4, read.data_object);
    PutLittleEndian(bytes, at + 8, read.offset_bytes);
    PutLittleEndian(bytes, at + 16, read.stored_bytes);
    PutLittleEndian(bytes, at + 24, read.chunk_count);
    at += kReadBytes;
  }
  return bytes;
}

/// Requires a multiple of kReadBytes.
std::vector<SectionRead> DecodeReads(std::span<const std::byte> bytes) {
  std::vector<SectionRead> reads;
  reads.reserve(bytes.size() / kReadBytes);
  for (size_t at = 0; at < bytes.size(); at += kReadBytes) {
    reads.push_back({.rank = GetLittleEndian<uint32_t>(bytes, at),
                     .data_object = GetLittleEndian<uint32_t>(bytes, at + 4),
                     .offset_bytes = GetLittleEndian<uint64_t>(bytes, at + 8),
                     .stored_bytes = GetLittleEndian<uint64_t>(bytes, at + 16),
                     .chunk_count = GetLittleEndian<uint64_t>(bytes, at + 24)});
  }
  return reads;
}

std::unexpected<Error> Unexpected() {
  return Fail(ErrorCode::kDataLoss, "it has an entry that it cannot have");
}

}  // namespace

std::string TaskName(const std::string& attempt, uint32_t range) {
  return fmt::format("{}{}/{}.merge", kPendingFolder, attempt, range);
}

std::string ResultName(const std::string& attempt, uint32_t range) {
  return fmt::format("{}{}/{}.merged", kPendingFolder, attempt, range);
}

Result<void> PutTask(const std::shared_ptr<Storage>& storage, const PartHeader& header,
                     uint32_t range, const RangeTask& task) {
  PartWriter writer(storage, TaskName(header.attempt, range), HeaderOf(header, range));
  CAIRN_TRY(writer.Add(Column::kSteps, task.begin, {}));
  CAIRN_TRY(writer.Add(Column::kSteps, task.end, {}));
  for (const auto& [rank, digest] : task.shared) {
    CAIRN_TRY(writer.Add(Column::kStructures, digest, EncodeNumber(rank)));
  }
  CAIRN_TRY(writer.Add(Column::kTables, "", EncodeTables(task.kept)));
  CAIRN_TRY(writer.Add(Column::kChunks, "", EncodeReads(task.reads)));
  return writer.Finish();
}

Result<RangeTask> ReadTask(Storage& storage, const PartHeader& header, uint32_t range) {
  RangeTask task;
  bool has_begin = false;
  CAIRN_TRY(ReadPart(storage, TaskName(header.attempt, range), HeaderOf(header, range),
                     [&](const RecordView& record) -> Result<void> {
                       switch (record.column) {
                         case Column::kSteps:
                           (has_begin ? task.end : task.begin) = record.key;
                           has_begin = true;
                           return {};
                         case Column::kStructures:
                           if (record.value.size() != 8 || record.key.size() != 16) break;
                           task.shared.emplace_back(GetLittleEndian<uint32_t>(record.value, 0),
                                                    record.key);
                           return {};
                         case Column::kTables: {
                           CAIRN_TRY_ASSIGN(task.kept, DecodeTables(record.value));
                           return {};
                         }
                         case Column::kChunks:
                           if (record.value.size() % kReadBytes != 0) break;
                           task.reads = DecodeReads(record.value);
                           return {};
                         default:
                           break;
                       }
                       return Unexpected();
                     }));
  return task;
}

Result<void> PutResult(const std::shared_ptr<Storage>& storage, const PartHeader& header,
                       uint32_t range, const RangeResult& result) {
  PartWriter writer(storage, ResultName(header.attempt, range), HeaderOf(header, range));
  CAIRN_TRY(writer.Add(Column::kTables, "", EncodeTables({&result.table, 1})));
  CAIRN_TRY(writer.Add(Column::kChunks, "", EncodeNumber(result.chunk_count)));
  std::vector<std::byte> uses(kUseBytes * result.uses.size());
  for (size_t i = 0; i < result.uses.size(); ++i) {
    PutLittleEndian(uses, kUseBytes * i, result.uses[i].first);
    PutLittleEndian(uses, kUseBytes * i + 8, result.uses[i].second);
  }
  CAIRN_TRY(writer.Add(Column::kUsage, "", uses));
  CAIRN_TRY(writer.Add(Column::kTensors, "", result.summary));
  return writer.Finish();
}

Result<RangeResult> ReadResult(Storage& storage, const PartHeader& header, uint32_t range) {
  RangeResult result;
  bool has_table = false;
  CAIRN_TRY(ReadPart(storage, ResultName(header.attempt, range), HeaderOf(header, range),
                     [&](const RecordView& record) -> Result<void> {
                       switch (record.column) {
                         case Column::kTables: {
                           CAIRN_TRY_ASSIGN(const auto tables, DecodeTables(record.value));
                           if (tables.size() != 1 || !tables.front().ranges.empty()) break;
                           result.table = tables.front();
                           has_table = true;
                           return {};
                         }
                         case Column::kChunks:
                           if (record.value.size() != 8) break;
                           result.chunk_count = GetLittleEndian<uint64_t>(record.value, 0);
                           return {};
                         case Column::kUsage:
                           if (record.value.size() % kUseBytes != 0) break;
                           for (size_t at = 0; at < record.value.size(); at += kUseBytes) {
                             result.uses.emplace_back(
                                 GetLittleEndian<uint64_t>(record.value, at),
                                 GetLittleEndian<uint64_t>(record.value, at + 8));
                           }
                           return {};
                         case Column::kTensors:
                           result.summary.assign(record.value.begin(), record.value.end());
                           return {};
                         default:
                           break;
                       }
                       return Unexpected();
                     }));
  if (!has_table) return Unexpected();
  return result;
}

}  // namespace cairn::kv::internal
