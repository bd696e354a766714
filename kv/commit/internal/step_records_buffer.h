#pragma once
/// The records of a step between the time when they are added, in any order, and the commit, which
/// needs them in the order of their keys.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/key.h"
#include "kv/commit/internal/collected_records.h"
#include "kv/commit/internal/record_run.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Memory: at most `memory_bytes` of records, and a few MiB per run. What exceeds this is sorted
/// and spilled to runs (record_run.h), which are objects with names of tables that no root reaches.
/// The destructor removes them. Threads: one.
class StepRecordsBuffer {
 public:
  static constexpr uint64_t kMemoryBytes = 192 << 20;

  StepRecordsBuffer(std::shared_ptr<Storage> storage, uint32_t epoch,
                    uint64_t memory_bytes = kMemoryBytes);
  ~StepRecordsBuffer();
  StepRecordsBuffer(const StepRecordsBuffer&) = delete;
  StepRecordsBuffer& operator=(const StepRecordsBuffer&) = delete;

  /// Requires a key that was not added before. kUnavailable, kResourceExhausted: the records cannot
  /// be spilled.
  Result<void> Add(Column column, std::string_view key, std::span<const std::byte> value);

  /// As Add, for chunks in a block of memory (CollectedRecords::AddChunks).
  Result<void> AddChunks(std::unique_ptr<uint64_t[]> block, size_t block_bytes,
                         std::span<const CollectedRecords::Chunks> chunks);

  /// Calls `callback` with every record, column by column, ascending by key. Values are aligned to
  /// 8 bytes and valid only during the call.
  Result<void> ForEachInOrder(const CollectedRecords::Callback& callback);

 private:
  Result<void> Spill();

  const std::shared_ptr<Storage> storage_;
  const uint32_t epoch_;
  const uint64_t memory_bytes_;
  CollectedRecords memory_;
  std::vector<RecordRun> spilled_;
};

}  // namespace cairn::kv::internal
