// Sorts in memory, and merges sorted runs if memory is not enough.

#include "kv/commit/internal/step_records_buffer.h"

#include <algorithm>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

/// The next records of sorted runs, least first.
class MergedRuns {
 public:
  Result<void> Add(const std::shared_ptr<Storage>& storage, const RecordRun& run) {
    CAIRN_TRY_ASSIGN(RecordRunReader reader, RecordRunReader::Open(storage, run));
    runs_.push_back(std::move(reader));
    order_.push_back(runs_.size() - 1);
    return {};
  }

  Result<void> ForEach(const CollectedRecords::Callback& callback) {
    std::ranges::sort(order_, [this](size_t a, size_t b) { return Precedes(a, b); });
    while (!order_.empty()) {
      const size_t first = order_.front();
      CAIRN_TRY(callback(runs_[first].record()));
      CAIRN_TRY(runs_[first].Next());
      auto position = order_.begin();
      if (!runs_[first].Valid()) {
        order_.erase(position);
        continue;
      }
      // Mostly ends at the first comparison: ranks that follow each other are in the same run.
      for (; position + 1 != order_.end() && Precedes(position[1], first); ++position) {
        position[0] = position[1];
      }
      *position = first;
    }
    return {};
  }

 private:
  bool Precedes(size_t a, size_t b) const {
    const RecordView& left = runs_[a].record();
    const RecordView& right = runs_[b].record();
    if (left.column != right.column) return left.column < right.column;
    const int compared = left.key.compare(right.key);
    return compared < 0 || (compared == 0 && a < b);
  }

  std::vector<RecordRunReader> runs_;
  std::vector<size_t> order_;  // indices of runs that have records
};

}  // namespace

StepRecordsBuffer::StepRecordsBuffer(std::shared_ptr<Storage> storage, uint32_t epoch,
                                     uint64_t memory_bytes)
    : storage_(std::move(storage)), epoch_(epoch), memory_bytes_(memory_bytes) {}

StepRecordsBuffer::~StepRecordsBuffer() {
  CleanUp([&] {
    for (const RecordRun& run : spilled_) {
      (void)storage_->Remove(ObjectName(ObjectKind::kTable, run.id));
    }
  });
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
  CAIRN_TRY_ASSIGN(RecordRunWriter writer, RecordRunWriter::Create(*storage_, NewObjectId(epoch_)));
  CAIRN_TRY(memory_.ForEachInOrder([&](const RecordView& record) { return writer.Add(record); }));
  CAIRN_TRY_ASSIGN(RecordRun run, writer.Finish());
  spilled_.push_back(std::move(run));
  memory_.Clear();
  return {};
}

Result<void> StepRecordsBuffer::ForEachInOrder(const CollectedRecords::Callback& callback) {
  if (spilled_.empty()) return memory_.ForEachInOrder(callback);
  if (memory_.size_bytes() > 0) CAIRN_TRY(Spill());
  MergedRuns runs;
  for (const RecordRun& run : spilled_) CAIRN_TRY(runs.Add(storage_, run));
  return runs.ForEach(callback);
}

}  // namespace cairn::kv::internal
