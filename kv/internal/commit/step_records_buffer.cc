// Sorts in memory, and merges sorted tables if memory is not enough.

#include "kv/internal/commit/step_records_buffer.h"

#include <string>
#include <utility>

#include "kv/aligned_bytes.h"
#include "kv/internal/storage/object_names.h"
#include "kv/internal/table/merge_iterator.h"
#include "kv/internal/table/table_reader.h"
#include "kv/internal/table/table_writer.h"

namespace cairn::kv::internal {

StepRecordsBuffer::StepRecordsBuffer(std::shared_ptr<Storage> storage, uint32_t epoch,
                                     uint64_t memory_bytes)
    : storage_(std::move(storage)), epoch_(epoch), memory_bytes_(memory_bytes) {}

StepRecordsBuffer::~StepRecordsBuffer() {
  for (const TableInfo& table : spilled_) {
    (void)storage_->Remove(ObjectName(ObjectKind::kTable, table.id));
  }
}

Result<void> StepRecordsBuffer::Add(Column column, std::string_view key,
                                    std::span<const std::byte> value) {
  memory_.Add(column, key, value);
  return memory_.size_bytes() < memory_bytes_ ? Result<void>() : Spill();
}

Result<void> StepRecordsBuffer::AddChunks(std::unique_ptr<uint64_t[]> block, size_t block_bytes,
                                          std::span<const CollectedRecords::Chunks> chunks) {
  memory_.AddChunks(std::move(block), block_bytes, chunks);
  return memory_.size_bytes() < memory_bytes_ ? Result<void>() : Spill();
}

Result<void> StepRecordsBuffer::Spill() {
  CAIRN_TRY_ASSIGN(const auto writer, TableWriter::Create(*storage_, NewObjectId(epoch_)));
  std::string full;
  CAIRN_TRY(memory_.ForEachInOrder([&](const RecordView& record) {
    full.assign(1, static_cast<char>(record.column)).append(record.key);
    return writer->Add(full, record.value);
  }));
  CAIRN_TRY_ASSIGN(const TableInfo table, writer->Finish());
  spilled_.push_back(table);
  memory_.Clear();
  return {};
}

Result<void> StepRecordsBuffer::ForEachInOrder(const CollectedRecords::Callback& callback) {
  if (spilled_.empty()) return memory_.ForEachInOrder(callback);
  if (memory_.size_bytes() > 0) CAIRN_TRY(Spill());
  // Not a TableStack: there may be more tables than a step may have.
  std::vector<std::shared_ptr<const TableReader>> tables;
  for (const TableInfo& info : spilled_) {
    CAIRN_TRY_ASSIGN(auto table, TableReader::Open(storage_, info));
    tables.push_back(std::move(table));
  }
  MergeIterator records(tables, TableAccess::kBulk);
  AlignedBytes aligned;
  CAIRN_TRY(records.Seek({}));
  while (records.Valid()) {
    const std::string_view key = records.key();
    const std::span<const std::byte> value = records.value();
    const std::string_view text(reinterpret_cast<const char*>(value.data()), value.size());
    CAIRN_TRY(callback({.column = static_cast<Column>(key.front()),
                        .key = key.substr(1),
                        .value = aligned.Assign(text)}));
    CAIRN_TRY(records.Next());
  }
  return {};
}

}  // namespace cairn::kv::internal
