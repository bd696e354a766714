#include "kv/commit/internal/record_sorter.h"

#include <algorithm>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/storage/internal/object_names.h"
#include "kv/table/internal/table_writer.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kUnsortedBytes = 1 << 20;

}  // namespace

RecordSorter::RecordSorter(std::shared_ptr<Storage> storage, uint32_t epoch, uint64_t memory_bytes,
                           FreeSpace free_space)
    : storage_(std::move(storage)),
      epoch_(epoch),
      memory_bytes_(memory_bytes),
      free_space_(std::move(free_space)) {}

RecordSorter::~RecordSorter() {
  CleanUp([&] {
    for (const RecordRun& run : std::span(runs_).first(spilled_count_)) {
      (void)storage_->Remove(ObjectName(ObjectKind::kTable, *run.id));
    }
  });
}

Result<void> RecordSorter::Add(const TableRecord& record) {
  CAIRN_TRY(CheckRecord(record.key, record.value));
  added_.Add(record);
  return added_.size_bytes() < std::min(kUnsortedBytes, memory_bytes_) ? Result<void>() : EndRun();
}

Result<void> RecordSorter::EndRun() {
  CAIRN_TRY(added_.ForEachInOrder([this](const uint64_t* words) { return writer_.Add(words); }));
  added_.Clear();
  CAIRN_TRY_ASSIGN(RecordRun run, writer_.Finish());
  return AddRun(std::move(run));
}

Result<void> RecordSorter::AddRun(RecordRun run) {
  memory_used_bytes_ += run.size_bytes();
  runs_.push_back(std::move(run));
  return memory_used_bytes_ < memory_bytes_ ? Result<void>() : Spill();
}

/// Merges the runs in memory to one in an object.
Result<void> RecordSorter::Spill() {
  const auto write = [&]() -> Result<RecordRun> {
    CAIRN_TRY_ASSIGN(RecordRunWriter writer,
                     RecordRunWriter::Create(*storage_, NewObjectId(epoch_)));
    CAIRN_TRY(Merge(std::span(runs_).subspan(spilled_count_),
                    [&](const TableRecord& record) { return writer.Add(record); }));
    return writer.Finish();
  };
  CAIRN_TRY_ASSIGN(RecordRun run, WithSpace(free_space_, write));
  runs_.resize(spilled_count_);
  runs_.push_back(std::move(run));
  ++spilled_count_;
  memory_used_bytes_ = 0;
  return {};
}

Result<void> RecordSorter::ForEachInOrder(const TableRecordCallback& callback) {
  if (runs_.empty()) {
    return added_.ForEachInOrder([&](const uint64_t* words) { return callback(RecordAt(words)); });
  }
  CAIRN_TRY(EndRun());
  return Merge(runs_, callback);
}

Result<void> RecordSorter::Merge(std::span<const RecordRun> runs,
                                 const TableRecordCallback& callback) {
  std::vector<RecordRunReader> readers;
  std::vector<size_t> order;  // readers that have records, least last
  for (const RecordRun& run : runs) {
    CAIRN_TRY_ASSIGN(RecordRunReader reader, RecordRunReader::Open(storage_, run));
    if (reader.Valid()) order.push_back(readers.size());
    readers.push_back(std::move(reader));
  }
  const auto follows = [&](size_t a, size_t b) {
    const int compared = readers[a].record().key.compare(readers[b].record().key);
    return compared > 0 || (compared == 0 && a > b);
  };
  std::ranges::sort(order, follows);
  while (!order.empty()) {
    const size_t least = order.back();
    CAIRN_TRY(callback(readers[least].record()));
    CAIRN_TRY(readers[least].Next());
    const bool has_more = readers[least].Valid();
    // Mostly true: ranks that follow each other have chunks that follow each other.
    if (has_more && (order.size() == 1 || follows(order[order.size() - 2], least))) continue;
    order.pop_back();
    if (has_more) order.insert(std::ranges::upper_bound(order, least, follows), least);
  }
  return {};
}

}  // namespace cairn::kv::internal
