#include "kv/table/internal/table_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "kv/base/key.h"
#include "kv/base/mapping.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kBulkReadBytes = 512 << 10;
// What a lookup that has become a scan reads ahead first; then twice as much each time.
constexpr uint64_t kFirstAheadBytes = 16 << 10;

}  // namespace

Result<void> TableIterator::Seek(std::string_view key) {
  is_valid_ = false;
  ends_here_ = false;
  max_ahead_bytes_ = access_ == TableAccess::kBulk ? kBulkReadBytes : 0;
  partition_.Close();
  records_.Close();
  top_.Open(table_.top_.contents);
  if (top_.Seek(key)) {
    CAIRN_TRY(OpenPartition());
    if (partition_.Seek(key)) {
      CAIRN_TRY(OpenRecords());
      is_valid_ = records_.Seek(key);
    }
  }
  return Settle();
}

Result<void> TableIterator::Settle() {
  while (!is_valid_) {
    if (records_.is_damaged() || partition_.is_damaged() || top_.is_damaged()) {
      return Fail(table_.file_.DamagedBlock("a wrong entry", partition_.handle().offset_bytes));
    }
    if (ends_here_) return {};
    if (partition_.Next()) {
      max_ahead_bytes_ = std::clamp(2 * max_ahead_bytes_, kFirstAheadBytes, kBulkReadBytes);
      CAIRN_TRY(OpenRecords());
      is_valid_ = records_.Next();
    } else if (!partition_.is_damaged()) {
      if (top_.Next()) {
        CAIRN_TRY(OpenPartition());
      } else if (!top_.is_damaged()) {
        return {};
      }
    }
  }
  is_valid_ = !ends_here_ || key() < end_;
  return {};
}

Result<void> TableIterator::OpenPartition() {
  CAIRN_TRY_ASSIGN(partition_block_, table_.ReadBlock(top_.handle()));
  partition_.Open(partition_block_->contents);
  return {};
}

Result<void> TableIterator::OpenRecords() {
  const BlockHandle& handle = partition_.handle();
  ends_here_ = !end_.empty() && partition_.key() >= end_;
  if (max_ahead_bytes_ == 0) {
    CAIRN_TRY_ASSIGN(records_block_, table_.ReadBlock(handle));
    records_.Open(records_block_->contents);
    return {};
  }
  if (!table_.file_.Contains(handle)) {
    return Fail(table_.file_.DamagedBlock("a block is not in the file", handle.offset_bytes));
  }
  const uint64_t stored_bytes = handle.length_bytes + kBlockTrailerBytes;
  if (handle.offset_bytes < ahead_offset_bytes_ ||
      handle.offset_bytes + stored_bytes > ahead_offset_bytes_ + ahead_.size()) {
    ahead_ = {};
    const std::span<std::byte> target = ahead_memory_.Resize(ReadAheadBytes());
    CAIRN_TRY(table_.file_.ReadAt(handle.offset_bytes, target));
    ahead_ = target;
    ahead_offset_bytes_ = handle.offset_bytes;
  }
  const auto contents = DecodeBlock(
      ahead_.subspan(handle.offset_bytes - ahead_offset_bytes_, stored_bytes), decompressed_);
  if (!contents) return Fail(table_.file_.DamagedBlock(contents.error(), handle.offset_bytes));
  records_.Open(*contents);
  return {};
}

uint64_t TableIterator::ReadAheadBytes() const {
  BlockCursor last = partition_;
  const uint64_t begin_bytes = last.handle().offset_bytes;
  uint64_t end_bytes = begin_bytes + last.handle().length_bytes + kBlockTrailerBytes;
  while ((end_.empty() || last.key() < end_) && last.Next() &&
         last.handle().offset_bytes == end_bytes && table_.file_.Contains(last.handle())) {
    const uint64_t next_end_bytes = end_bytes + last.handle().length_bytes + kBlockTrailerBytes;
    if (next_end_bytes - begin_bytes > max_ahead_bytes_) break;
    end_bytes = next_end_bytes;
  }
  return end_bytes - begin_bytes;
}

Result<std::shared_ptr<const TableReader>> TableReader::Open(std::shared_ptr<Storage> storage,
                                                             const TableInfo& info) {
  CAIRN_TRY_ASSIGN(TableFile file, TableFile::Open(std::move(storage), info));
  const std::shared_ptr<TableReader> table(new TableReader(std::move(file), info));
  CAIRN_TRY(table->file_.ReadBlock(table->file_.index(), table->top_));
  return table;
}

std::unique_ptr<TableIterator> TableReader::NewIterator(TableAccess access,
                                                        std::string_view end) const {
  return std::unique_ptr<TableIterator>(new TableIterator(*this, access, end));
}

Result<TableReader::Block> TableReader::ReadBlock(const BlockHandle& handle) const {
  {
    const MutexLock lock(mutex_);
    const Block* const kept = kept_.Find(handle.offset_bytes);
    if (kept != nullptr) return *kept;
  }
  const auto block = std::make_shared<TableBlock>();
  CAIRN_TRY(file_.ReadBlock(handle, *block));
  if (block->contents.size() <= kMaxKeptBytes) {
    const MutexLock lock(mutex_);
    kept_.Put(handle.offset_bytes, block);
  }
  return block;
}

Result<std::optional<std::vector<std::byte>>> TableReader::Get(std::string_view key) const {
  const auto iterator = NewIterator(TableAccess::kLookup, std::string(key) + '\0');
  CAIRN_TRY(iterator->Seek(key));
  if (!iterator->Valid() || iterator->key() != key) return std::nullopt;
  const auto value = iterator->value();
  return std::vector(value.begin(), value.end());
}

Result<uint64_t> TableReader::CountRecords() const {
  const auto iterator = NewIterator(TableAccess::kBulk);
  CAIRN_TRY(iterator->Seek({}));
  uint64_t count = 0;
  for (; iterator->Valid(); ++count) CAIRN_TRY(iterator->Next());
  return count;
}

Result<void> TableReader::Verify() const {
  CAIRN_TRY(file_.VerifyDigest(info_.digest));
  // Also finds damage that happened before the digest was computed.
  CAIRN_TRY_ASSIGN(const uint64_t record_count, CountRecords());
  if (record_count == info_.record_count) return {};
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .hint = Hint::kRebuildTables,
                    .message = fmt::format("the table has {} records and not {}", record_count,
                                           info_.record_count),
                    .file = file_.path()});
}

MergeIterator::MergeIterator(std::span<const std::shared_ptr<const TableReader>> tables,
                             TableAccess access, std::string_view end) {
  for (const auto& table : tables) sources_.push_back(table->NewIterator(access, end));
  order_.reserve(sources_.size());
}

Result<void> MergeIterator::Seek(std::string_view key) {
  order_.clear();
  for (size_t source = 0; source < sources_.size(); ++source) {
    CAIRN_TRY(sources_[source]->Seek(key));
    if (sources_[source]->Valid()) Insert(source);
  }
  return {};
}

Result<void> MergeIterator::NextOfSeveral() {
  // Skips the older records of this key. Each source moves behind the first, or out of the order.
  while (order_.size() > 1 && sources_[order_[1]]->key() == key()) CAIRN_TRY(Advance(1));
  return Advance(0);
}

bool MergeIterator::Precedes(size_t a, size_t b) const {
  const int compared = sources_[a]->key().compare(sources_[b]->key());
  return compared < 0 || (compared == 0 && a < b);
}

void MergeIterator::Insert(size_t source) {
  // Mostly ends at the first comparison: sources of many records precede sources of few.
  const auto position =
      std::ranges::find_if(order_, [&](size_t other) { return Precedes(source, other); });
  order_.insert(position, source);
}

Result<void> MergeIterator::Advance(size_t position) {
  const size_t source = order_[position];
  const Result<void> moved = sources_[source]->Next();
  // Mostly remains where it is: sources of many records precede sources of few.
  if (moved && sources_[source]->Valid() &&
      (position + 1 == order_.size() || Precedes(source, order_[position + 1]))) {
    return {};
  }
  order_.erase(order_.begin() + static_cast<ptrdiff_t>(position));
  CAIRN_TRY(moved);
  if (sources_[source]->Valid()) Insert(source);
  return {};
}

TableStack::TableStack(std::vector<std::shared_ptr<const TableReader>> tables)
    : tables_(std::move(tables)) {
  CAIRN_CHECK(tables_.size() <= kMaxTables);
}

Result<std::optional<std::vector<std::byte>>> TableStack::Get(std::string_view key) const {
  for (const auto& table : tables_) {
    CAIRN_TRY_ASSIGN(auto value, table->Get(key));
    if (!value) continue;
    if (value->empty()) break;
    return value;
  }
  return std::nullopt;
}

namespace {

/// Returns the first key that follows all keys that begin with `prefix`; empty if there is none.
std::string EndOf(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  if (!end.empty()) end.back() = static_cast<char>(end.back() + 1);
  return end;
}

}  // namespace

Result<void> TableStack::Scan(std::string_view prefix, const Visit& visit) const {
  return ScanFrom(prefix, prefix, visit);
}

Result<void> TableStack::ScanFrom(std::string_view first_key, std::string_view prefix,
                                  const Visit& visit) const {
  // A key of one byte is the beginning of a column, which is probably read completely.
  const TableAccess access = first_key.size() <= 1 ? TableAccess::kBulk : TableAccess::kLookup;
  return ScanUntil(first_key, EndOf(prefix), access, visit);
}

Result<void> TableStack::ScanContents(const Visit& visit) const {
  return ScanUntil(ColumnPrefix(Column::kTensors), ColumnPrefix(Column::kSegments),
                   TableAccess::kBulk, visit);
}

Result<void> TableStack::ScanUntil(std::string_view first_key, std::string_view end,
                                   TableAccess access, const Visit& visit) const {
  MergeIterator iterator(tables_, access, end);
  AlignedBytes aligned;
  CAIRN_TRY(iterator.Seek(first_key));
  while (iterator.Valid()) {
    const auto value = iterator.value();
    if (!value.empty()) {
      const std::string_view text(reinterpret_cast<const char*>(value.data()), value.size());
      CAIRN_TRY_ASSIGN(const bool more, visit(iterator.key(), aligned.Assign(text)));
      if (!more) return {};
    }
    CAIRN_TRY(iterator.Next());
  }
  return {};
}

Result<OpenTables::Table> OpenTables::Open(const TableInfo& info) {
  {
    const MutexLock lock(mutex_);
    const Table* const found = open_.Find(info.id);
    if (found != nullptr && (*found)->info() == info) return *found;
  }
  CAIRN_TRY_ASSIGN(auto table, TableReader::Open(storage_, info));
  const MutexLock lock(mutex_);
  open_.Put(info.id, table);
  return table;
}

Result<TableStack> OpenTables::OpenStack(std::span<const TableInfo> infos) {
  if (infos.size() > kMaxTables) {
    return Fail(ErrorCode::kDataLoss, fmt::format("a step has {} tables, more than the limit of {}",
                                                  infos.size(), kMaxTables));
  }
  std::vector<std::shared_ptr<const TableReader>> tables(infos.size());
  CAIRN_TRY(ForEachRequest(*storage_, infos.size(), [&](size_t i) -> Result<void> {
    CAIRN_TRY_ASSIGN(tables[i], Open(infos[i]));
    return {};
  }));
  return TableStack(std::move(tables));
}

void OpenTables::DropRemoved() {
  if (storage_->local_files() == nullptr) return;
  const MutexLock lock(mutex_);
  open_.RemoveIf([&](const ObjectId& id, const Table&) {
    const auto size = storage_->Size(ObjectName(ObjectKind::kTable, id));
    return !size && size.error().code == ErrorCode::kNotFound;
  });
}

void OpenTables::Forget(const ObjectId& id) {
  const MutexLock lock(mutex_);
  open_.RemoveIf([&](const ObjectId& other, const Table&) { return other == id; });
}

}  // namespace cairn::kv::internal
