#include "kv/table/internal/delta_writer.h"

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

DeltaWriter::DeltaWriter(Storage& storage, const ObjectId& id, const TableStack& base,
                         std::string last_key)
    : storage_(storage),
      id_(id),
      base_(base.tables().begin(), base.tables().end()),
      end_key_(std::move(last_key)) {
  for (const auto& table : base_) record_counts_.push_back(table->info().record_count);
}
DeltaWriter::~DeltaWriter() = default;

Result<std::unique_ptr<DeltaWriter>> DeltaWriter::Create(Storage& storage, const ObjectId& id,
                                                         const TableStack& base,
                                                         std::string last_key,
                                                         RecordSource source) {
  std::unique_ptr<DeltaWriter> writer(new DeltaWriter(storage, id, base, std::move(last_key)));
  if (writer->base_.empty()) {
    CAIRN_TRY_ASSIGN(writer->writer_, TableWriter::Create(storage, id, source));
    return writer;
  }
  writer->compared_ = std::make_unique<MergeIterator>(writer->base_, TableAccess::kBulk);
  CAIRN_TRY(writer->compared_->Seek({}));
  CAIRN_TRY(writer->SkipTombstones());
  return writer;
}

bool DeltaWriter::IsBeforeEnd(std::string_view key) const {
  return end_key_.empty() || key < end_key_;
}

/// Returns whether there is a record of the base that was not compared.
bool DeltaWriter::HasCompared() const {
  return compared_ != nullptr && compared_->Valid() && IsBeforeEnd(compared_->key());
}

Result<void> DeltaWriter::Add(std::string_view key, std::span<const std::byte> value) {
  if (writer_ != nullptr) return writer_->Add(key, value);
  CAIRN_TRY(CheckOrder(key));
  CAIRN_TRY(CheckRecord(key, value));
  CAIRN_TRY(DeleteBefore(key));
  if (writer_ != nullptr) return writer_->Add(key, value);
  if (HasCompared() && compared_->key() == key) {
    const bool is_equal = IsEqual(compared_->value(), value);
    CAIRN_TRY(compared_->Next());
    CAIRN_TRY(SkipTombstones());
    has_equal_ |= is_equal;
    if (is_equal) return {};
  }
  return AddDifference(key, value);
}

Result<void> DeltaWriter::KeepAfter(std::string_view key) {
  const std::string next = std::string(key) + '\0';
  CAIRN_TRY(DeleteBefore(next));
  if (writer_ == nullptr) {
    compared_.reset();
    return {};
  }
  MergeIterator kept(base_, TableAccess::kBulk);
  CAIRN_TRY(kept.Seek(next));
  while (kept.Valid() && IsBeforeEnd(kept.key())) {
    if (!kept.value().empty()) CAIRN_TRY(writer_->Add(kept.key(), kept.value()));
    CAIRN_TRY(kept.Next());
  }
  return {};
}

Result<std::vector<TableInfo>> DeltaWriter::Finish(const LastRecord& last_record) {
  CAIRN_TRY(DeleteBefore(std::nullopt));
  size_t merged_count = base_.size();
  if (writer_ == nullptr) {
    merged_count = 0;
    if (differences_.record_count() > 0 || last_record) {
      merged_count = DepthOfMerge();
      CAIRN_TRY_ASSIGN(writer_, TableWriter::Create(storage_, id_));
      CAIRN_TRY(WriteMerged(std::span(base_).first(merged_count), /*keep_tombstones=*/true,
                            std::nullopt));
    }
  }
  std::vector<TableInfo> tables;
  for (const auto& table : std::span(base_).subspan(merged_count)) tables.push_back(table->info());
  if (writer_ == nullptr) return tables;
  if (last_record) CAIRN_TRY(writer_->Add(end_key_, last_record(tables)));
  if (writer_->record_count() == 0) return tables;
  CAIRN_TRY_ASSIGN(const TableInfo written, writer_->Finish());
  tables.insert(tables.begin(), written);
  return tables;
}

Result<void> DeltaWriter::CheckOrder(std::string_view key) {
  if (last_key_ && key <= *last_key_) {
    return Fail(ErrorCode::kInvalidArgument, "the records of a step are not in the order of keys");
  }
  last_key_ = key;
  return {};
}

Result<void> DeltaWriter::SkipTombstones() {
  while (compared_->Valid() && compared_->value().empty()) CAIRN_TRY(compared_->Next());
  return {};
}

/// Adds a tombstone for each record of the base, from the current one on, that is less than `end`.
Result<void> DeltaWriter::DeleteBefore(std::optional<std::string_view> end) {
  while (HasCompared() && (!end || compared_->key() < *end)) {
    CAIRN_TRY(AddDifference(compared_->key(), {}));
    if (compared_ == nullptr) break;
    CAIRN_TRY(compared_->Next());
    CAIRN_TRY(SkipTombstones());
  }
  return {};
}

Result<void> DeltaWriter::AddDifference(std::string_view key, std::span<const std::byte> value) {
  differences_.Add(key, value);
  if (differences_.size_bytes() <= kMaxDifferenceBytes && DepthOfMerge() < base_.size()) return {};
  return BecomeComplete(key);
}

/// Begins the complete table with the records of the new step up to `last_key`, which is the last
/// one that was compared.
Result<void> DeltaWriter::BecomeComplete(std::string_view last_key) {
  CAIRN_TRY_ASSIGN(writer_, TableWriter::Create(storage_, id_));
  // A training step changes every chunk, and then nothing of the base has to be read again.
  const std::span remaining = has_equal_ ? std::span(base_) : std::span(base_).first(0);
  CAIRN_TRY(WriteMerged(remaining, /*keep_tombstones=*/false, last_key));
  compared_.reset();
  differences_.Clear();
  return {};
}

/// Writes the differences, and the records of `tables` up to `last_key` that they do not hide.
Result<void> DeltaWriter::WriteMerged(std::span<const std::shared_ptr<const TableReader>> tables,
                                      bool keep_tombstones,
                                      std::optional<std::string_view> last_key) {
  const auto write = [&](std::string_view key, std::span<const std::byte> value) -> Result<void> {
    if (!value.empty()) return writer_->Add(key, value);
    return keep_tombstones ? writer_->AddTombstone(key) : Result<void>();
  };
  MergeIterator older(tables, TableAccess::kBulk);
  CAIRN_TRY(older.Seek({}));
  RecordBuffer::Cursor newer(differences_);
  while (true) {
    const bool has_older =
        older.Valid() && IsBeforeEnd(older.key()) && (!last_key || older.key() <= *last_key);
    if (!has_older && !newer.Valid()) return {};
    if (newer.Valid() && (!has_older || newer.key() <= older.key())) {
      const bool is_hidden = has_older && newer.key() == older.key();
      CAIRN_TRY(write(newer.key(), newer.value()));
      if (is_hidden) CAIRN_TRY(older.Next());
      newer.Next();
    } else {
      CAIRN_TRY(write(older.key(), older.value()));
      CAIRN_TRY(older.Next());
    }
  }
}

size_t MergeDepth(std::span<const uint64_t> record_counts, uint64_t differing_records) {
  uint64_t merged_records = differing_records;
  size_t depth = 0;
  for (; depth < record_counts.size(); ++depth) {
    const uint64_t next_records = record_counts[depth];
    const bool is_small = next_records <= kMergeFactor * merged_records;
    const bool is_too_many = record_counts.size() - depth + 1 > kMaxTables;
    if (!is_small && !is_too_many) break;
    merged_records += next_records;
  }
  return depth;
}

}  // namespace cairn::kv::internal
