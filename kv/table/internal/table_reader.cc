#include "kv/table/internal/table_reader.h"

#include <fmt/format.h>
#include <rocksdb/iterator.h>
#include <rocksdb/sst_file_reader.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kv/base/key.h"
#include "kv/base/mapping.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/table_file.h"
#include "kv/table/internal/table_file_system.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kBulkReadBytes = 512 << 10;

std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

}  // namespace

/// RocksDB refers to the slice as long as the iterator exists.
struct TableIterator::Bound {
  explicit Bound(std::string_view end) : key(end), slice(key) {}
  const std::string key;
  const rocksdb::Slice slice;
};

TableIterator::TableIterator(std::string_view end)
    : end_(end.empty() ? nullptr : std::make_unique<const Bound>(end)) {}
TableIterator::~TableIterator() = default;

Result<void> TableIterator::Seek(std::string_view key) {
  iterator_->Seek({key.data(), key.size()});
  return CheckStatus();
}

Result<void> TableIterator::Next() {
  iterator_->Next();
  return CheckStatus();
}

Result<void> TableIterator::CheckStatus() const {
  if (iterator_->Valid() || iterator_->status().ok()) return {};
  return Fail(TableError(iterator_->status(), "cannot read the table", std::string(path_)));
}

bool TableIterator::Valid() const { return iterator_->Valid(); }
std::string_view TableIterator::key() const { return ToView(iterator_->key()); }
std::span<const std::byte> TableIterator::value() const {
  const rocksdb::Slice value = iterator_->value();
  return std::as_bytes(std::span(value.data(), value.size()));
}

struct TableReader::State {
  State(TableFile table_file, const TableInfo& table_info)
      : info(table_info),
        file(std::move(table_file)),
        environment(TableEnvironment(&file, nullptr)),
        reader(TableOptions(*environment)) {}

  // In the order of use: each needs the members before it.
  const TableInfo info;
  const TableFile file;
  const std::unique_ptr<rocksdb::Env> environment;
  rocksdb::SstFileReader reader;
};

TableReader::TableReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
TableReader::~TableReader() = default;

Result<std::shared_ptr<const TableReader>> TableReader::Open(std::shared_ptr<Storage> storage,
                                                             const TableInfo& info) {
  CAIRN_TRY_ASSIGN(TableFile file, TableFile::Open(std::move(storage), info));
  auto state = std::make_unique<State>(std::move(file), info);
  const rocksdb::Status opened = state->reader.Open(state->file.name());
  if (!opened.ok()) return Fail(TableError(opened, "cannot open the table", state->file.path()));
  return std::shared_ptr<const TableReader>(new TableReader(std::move(state)));
}

const TableInfo& TableReader::info() const { return state_->info; }

std::unique_ptr<TableIterator> TableReader::NewIterator(TableAccess access,
                                                        std::string_view end) const {
  std::unique_ptr<TableIterator> iterator(new TableIterator(end));
  iterator->path_ = state_->file.path();
  rocksdb::ReadOptions options;
  if (iterator->end_ != nullptr) options.iterate_upper_bound = &iterator->end_->slice;
  if (access == TableAccess::kBulk) {
    options.readahead_size = kBulkReadBytes;
    options.fill_cache = false;
  }
  // RocksDB declares the function non-const, but only reads.
  iterator->iterator_.reset(state_->reader.NewIterator(options));
  return iterator;
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
  CAIRN_TRY(state_->file.VerifyDigest(state_->info.digest));
  // Also finds damage that happened before the digest was computed.
  CAIRN_TRY_ASSIGN(const uint64_t record_count, CountRecords());
  if (record_count == state_->info.record_count) return {};
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .hint = Hint::kRebuildTables,
                    .message = fmt::format("the table has {} records and not {}", record_count,
                                           state_->info.record_count),
                    .file = state_->file.path()});
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

Result<void> MergeIterator::Next() {
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
  order_.erase(order_.begin() + static_cast<ptrdiff_t>(position));
  CAIRN_TRY(sources_[source]->Next());
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
