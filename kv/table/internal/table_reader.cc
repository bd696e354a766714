#include "kv/table/internal/table_reader.h"

#include <fmt/format.h>
#include <rocksdb/iterator.h>
#include <rocksdb/sst_file_reader.h>

#include <algorithm>
#include <string>
#include <utility>

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

Result<void> TableReader::Verify() const {
  CAIRN_TRY(state_->file.VerifyDigest(state_->info.digest));
  // Also finds damage that happened before the digest was computed.
  const auto iterator = NewIterator(TableAccess::kBulk);
  CAIRN_TRY(iterator->Seek({}));
  uint64_t record_count = 0;
  for (; iterator->Valid(); ++record_count) CAIRN_TRY(iterator->Next());
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

}  // namespace cairn::kv::internal
