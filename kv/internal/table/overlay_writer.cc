#include "kv/internal/table/overlay_writer.h"

#include <algorithm>
#include <utility>

namespace cairn::kv::internal {

OverlayWriter::OverlayWriter(Storage& storage, const ObjectId& id, std::vector<KeyRange> ranges,
                             RecordSource source)
    : storage_(storage), id_(id), ranges_(std::move(ranges)), source_(source) {}

Result<std::unique_ptr<OverlayWriter>> OverlayWriter::Create(Storage& storage, const ObjectId& id,
                                                             const TableStack& below,
                                                             std::vector<KeyRange> ranges,
                                                             RecordSource source) {
  std::unique_ptr<OverlayWriter> writer(new OverlayWriter(storage, id, std::move(ranges), source));
  if (below.tables().empty() || writer->ranges_.empty()) return writer;
  writer->tables_.assign(below.tables().begin(), below.tables().end());
  writer->below_ = std::make_unique<MergeIterator>(writer->tables_, TableAccess::kBulk);
  CAIRN_TRY(writer->EnterRange(0));
  return writer;
}

Result<void> OverlayWriter::EnterRange(size_t range) {
  range_ = range;
  CAIRN_TRY(below_->Seek(ranges_[range].begin));
  return SettleBelow();
}

/// Moves to the first live record of the ranges, or ends the comparison.
Result<void> OverlayWriter::SettleBelow() {
  while (true) {
    while (below_->Valid() && below_->value().empty()) CAIRN_TRY(below_->Next());
    const std::string& end = ranges_[range_].end;
    if (below_->Valid() && (end.empty() || below_->key() < end)) return {};
    if (!below_->Valid() || range_ + 1 == ranges_.size()) {
      below_ = nullptr;
      return {};
    }
    CAIRN_TRY(below_->Seek(ranges_[++range_].begin));
  }
}

/// Adds a tombstone for each record below, from the current one on, that is less than `end`.
Result<void> OverlayWriter::DeleteBefore(std::optional<std::string_view> end) {
  while (below_ != nullptr && (!end || below_->key() < *end)) {
    CAIRN_TRY_ASSIGN(TableWriter* const writer, Writer());
    CAIRN_TRY(writer->AddTombstone(below_->key()));
    CAIRN_TRY(below_->Next());
    CAIRN_TRY(SettleBelow());
  }
  return {};
}

Result<TableWriter*> OverlayWriter::Writer() {
  if (writer_ == nullptr) {
    CAIRN_TRY_ASSIGN(writer_, TableWriter::Create(storage_, id_, source_));
  }
  return writer_.get();
}

Result<void> OverlayWriter::Add(std::string_view key, std::span<const std::byte> value) {
  CAIRN_TRY(DeleteBefore(key));
  if (below_ != nullptr && below_->key() == key) {
    const bool is_equal = std::ranges::equal(below_->value(), value);
    CAIRN_TRY(below_->Next());
    CAIRN_TRY(SettleBelow());
    if (is_equal) return {};
  }
  CAIRN_TRY_ASSIGN(TableWriter* const writer, Writer());
  return writer->Add(key, value);
}

Result<void> OverlayWriter::AddLast(std::string_view key, std::span<const std::byte> value) {
  CAIRN_TRY(DeleteBefore(std::nullopt));
  CAIRN_TRY_ASSIGN(TableWriter* const writer, Writer());
  return writer->Add(key, value);
}

Result<TableInfo> OverlayWriter::Finish() {
  CAIRN_TRY(DeleteBefore(std::nullopt));
  return writer_ == nullptr ? TableInfo{.id = id_} : writer_->Finish();
}

}  // namespace cairn::kv::internal
