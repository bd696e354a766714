#include "kv/table/internal/overlay_writer.h"

#include <cstring>
#include <utility>

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMergeFactor = 4;
constexpr uint64_t kMaxDifferenceBytes = 64 << 20;

/// Compares with memcmp, which std::ranges::equal does not use for std::byte.
bool IsEqual(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

OverlayWriter::OverlayWriter(Storage& storage, const ObjectId& id, const TableStack& base,
                             std::string last_key)
    : storage_(storage),
      id_(id),
      base_(base.tables().begin(), base.tables().end()),
      end_key_(std::move(last_key)) {}
OverlayWriter::~OverlayWriter() = default;

Result<std::unique_ptr<OverlayWriter>> OverlayWriter::Create(Storage& storage, const ObjectId& id,
                                                             const TableStack& base,
                                                             std::string last_key) {
  std::unique_ptr<OverlayWriter> writer(new OverlayWriter(storage, id, base, std::move(last_key)));
  if (writer->base_.empty()) {
    CAIRN_TRY_ASSIGN(writer->writer_, TableWriter::Create(storage, id));
    return writer;
  }
  writer->compared_ =
      std::make_unique<MergeIterator>(writer->base_, TableAccess::kBulk, writer->end_key_);
  CAIRN_TRY(writer->compared_->Seek({}));
  CAIRN_TRY(writer->SkipTombstones());
  return writer;
}

Result<void> OverlayWriter::Add(std::string_view key, std::span<const std::byte> value) {
  if (writer_ == nullptr) {
    if (key <= last_key_) {
      return Fail(ErrorCode::kInvalidArgument,
                  "the records of a step are not in the order of keys");
    }
    last_key_ = key;
    CAIRN_TRY(CheckRecord(key, value));
    CAIRN_TRY(DeleteBefore(key));
  }
  if (writer_ != nullptr) return writer_->Add(key, value);
  if (compared_->Valid() && compared_->key() == key) {
    const bool is_equal = IsEqual(compared_->value(), value);
    CAIRN_TRY(compared_->Next());
    CAIRN_TRY(SkipTombstones());
    has_equal_ |= is_equal;
    if (is_equal) return {};
  }
  return AddDifference(key, value);
}

Result<void> OverlayWriter::KeepAfter(std::string_view key) {
  const std::string next = std::string(key) + '\0';
  CAIRN_TRY(DeleteBefore(next));
  compared_.reset();
  if (writer_ == nullptr) return {};
  MergeIterator kept(base_, TableAccess::kBulk, end_key_);
  CAIRN_TRY(kept.Seek(next));
  while (kept.Valid()) {
    if (!kept.value().empty()) CAIRN_TRY(writer_->Add(kept.key(), kept.value()));
    CAIRN_TRY(kept.Next());
  }
  return {};
}

Result<std::vector<TableInfo>> OverlayWriter::Finish(const LastRecord& last_record) {
  CAIRN_TRY(DeleteBefore(end_key_));
  size_t merged_count = base_.size();
  if (writer_ == nullptr) {
    merged_count = MergeDepth();
    CAIRN_TRY(
        WriteMerged(std::span(base_).first(merged_count), /*keep_tombstones=*/true, end_key_));
  }
  std::vector<TableInfo> tables;
  for (const auto& table : std::span(base_).subspan(merged_count)) tables.push_back(table->info());
  CAIRN_TRY(writer_->Add(end_key_, last_record(tables)));
  CAIRN_TRY_ASSIGN(const TableInfo written, writer_->Finish());
  tables.insert(tables.begin(), written);
  return tables;
}

Result<void> OverlayWriter::SkipTombstones() {
  while (compared_->Valid() && compared_->value().empty()) CAIRN_TRY(compared_->Next());
  return {};
}

/// Adds a tombstone for each record of the base, from the current one on, that is less than `end`.
Result<void> OverlayWriter::DeleteBefore(std::string_view end) {
  while (compared_ != nullptr && compared_->Valid() && compared_->key() < end) {
    CAIRN_TRY(AddDifference(compared_->key(), {}));
    if (compared_ == nullptr) break;
    CAIRN_TRY(compared_->Next());
    CAIRN_TRY(SkipTombstones());
  }
  return {};
}

/// Adds a record or a tombstone. `key` is the last one that was compared. If the table has to be a
/// complete one, begins it with the records of the new step up to this key.
Result<void> OverlayWriter::AddDifference(std::string_view key, std::span<const std::byte> value) {
  CAIRN_TRY(differences_.Add({.key = key, .value = value}));
  ++difference_count_;
  if (differences_.size_bytes() <= kMaxDifferenceBytes && MergeDepth() < base_.size()) return {};
  // A training step changes every chunk, and then nothing of the base has to be read again.
  const std::span remaining = has_equal_ ? std::span(base_) : std::span(base_).first(0);
  CAIRN_TRY(WriteMerged(remaining, /*keep_tombstones=*/false, key));
  compared_.reset();
  return {};
}

/// Begins the table with the differences, and the records of `tables` up to `last_key` that they do
/// not hide.
Result<void> OverlayWriter::WriteMerged(std::span<const std::shared_ptr<const TableReader>> tables,
                                        bool keep_tombstones, std::string_view last_key) {
  CAIRN_TRY_ASSIGN(writer_, TableWriter::Create(storage_, id_));
  const auto write = [&](std::string_view key, std::span<const std::byte> value) -> Result<void> {
    if (!value.empty()) return writer_->Add(key, value);
    return keep_tombstones ? writer_->AddTombstone(key) : Result<void>();
  };
  MergeIterator older(tables, TableAccess::kBulk, end_key_);
  CAIRN_TRY(older.Seek({}));
  CAIRN_TRY_ASSIGN(const RecordRun differences, differences_.Finish());
  CAIRN_TRY_ASSIGN(RecordRunReader newer, RecordRunReader::Open(nullptr, differences));
  while (true) {
    const bool has_older = older.Valid() && older.key() <= last_key;
    if (!has_older && !newer.Valid()) return {};
    if (newer.Valid() && (!has_older || newer.record().key <= older.key())) {
      const bool is_hidden = has_older && newer.record().key == older.key();
      CAIRN_TRY(write(newer.record().key, newer.record().value));
      if (is_hidden) CAIRN_TRY(older.Next());
      CAIRN_TRY(newer.Next());
    } else {
      CAIRN_TRY(write(older.key(), older.value()));
      CAIRN_TRY(older.Next());
    }
  }
}

/// Returns how many tables of the base are merged into the new one by the rule above.
size_t OverlayWriter::MergeDepth() const {
  uint64_t merged_records = difference_count_;
  size_t depth = 0;
  for (; depth < base_.size(); ++depth) {
    const uint64_t next_records = base_[depth]->info().record_count - 1;  // without the last one
    const bool is_small = next_records <= kMergeFactor * merged_records;
    const bool is_too_many = base_.size() - depth + 1 > kMaxTables;
    if (!is_small && !is_too_many) break;
    merged_records += next_records;
  }
  return depth;
}

}  // namespace cairn::kv::internal
