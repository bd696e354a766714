#include "kv/internal/table/table_reader.h"

#include <fmt/format.h>
#include <rocksdb/iterator.h>
#include <rocksdb/sst_file_reader.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kv/internal/table/table_file.h"
#include "kv/internal/table/table_file_system.h"
#include "kv/key.h"
#include "kv/mutex.h"
#include "kv/thread_annotations.h"

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

TableIterator::TableIterator(TableAccess access, std::string_view end)
    : access_(access), end_(end.empty() ? nullptr : std::make_unique<const Bound>(end)) {}
TableIterator::~TableIterator() = default;

Result<void> TableIterator::Seek(std::string_view key) {
  if (divided_ != nullptr) {
    const auto& spans = divided_->spans();
    size_t span = 0;
    while (span + 1 < spans.size() && spans[span].end <= key) ++span;
    CAIRN_TRY(EnterSpan(span, std::max(key, std::string_view(spans[span].begin))));
    return SkipEmptySpans();
  }
  iterator_->Seek({key.data(), key.size()});
  return CheckStatus();
}

Result<void> TableIterator::Next() {
  iterator_->Next();
  CAIRN_TRY(CheckStatus());
  return divided_ == nullptr ? Result<void>() : SkipEmptySpans();
}

/// Returns whether the file of the current span has a record here that belongs to the span.
bool TableIterator::IsInSpan() const {
  const std::string& end = divided_->spans()[span_].end;
  return iterator_->Valid() && (end.empty() || ToView(iterator_->key()) < end);
}

Result<void> TableIterator::EnterSpan(size_t span, std::string_view key) {
  if (iterator_ == nullptr || span != span_) {
    CAIRN_TRY_ASSIGN(const TableReader* const file, divided_->FileOf(divided_->spans()[span]));
    iterator_ = file->NewFileIterator(access_, end_.get());
    path_ = file->path();
    span_ = span;
  }
  iterator_->Seek({key.data(), key.size()});
  return CheckStatus();
}

Result<void> TableIterator::SkipEmptySpans() {
  const auto& spans = divided_->spans();
  const auto is_before_end = [&](const std::string& key) {
    return end_ == nullptr || key < end_->key;
  };
  while (!IsInSpan() && span_ + 1 < spans.size() && is_before_end(spans[span_ + 1].begin)) {
    CAIRN_TRY(EnterSpan(span_ + 1, spans[span_ + 1].begin));
  }
  return {};
}

Result<void> TableIterator::CheckStatus() const {
  if (iterator_->Valid() || iterator_->status().ok()) return {};
  return Fail(TableError(iterator_->status(), "cannot read the table", std::string(path_)));
}

bool TableIterator::Valid() const {
  return divided_ == nullptr ? iterator_->Valid() : iterator_ != nullptr && IsInSpan();
}
std::string_view TableIterator::key() const { return ToView(iterator_->key()); }
std::span<const std::byte> TableIterator::value() const {
  const rocksdb::Slice value = iterator_->value();
  return std::as_bytes(std::span(value.data(), value.size()));
}

struct TableReader::State {
  State(std::shared_ptr<Storage> of_table, TableFile table_file, const TableInfo& table_info)
      : storage(std::move(of_table)),
        info(table_info),
        file(std::move(table_file)),
        environment(ReadEnvironment(file)),
        reader(TableOptions(*environment)),
        spans(SpansOf(info)),
        ranges(info.ranges.size()) {}

  const std::shared_ptr<Storage> storage;

  // In the order of use: each needs those before it.
  const TableInfo info;
  const TableFile file;
  const std::unique_ptr<rocksdb::Env> environment;
  rocksdb::SstFileReader reader;

  const std::vector<Span> spans;  // of a divided table
  Mutex mutex;
  std::vector<std::shared_ptr<const TableReader>> ranges CAIRN_GUARDED_BY(mutex);  // that are open
};

/// Returns the spans of a divided table, in the order of keys.
std::vector<TableReader::Span> TableReader::SpansOf(const TableInfo& info) {
  if (info.ranges.empty()) return {};
  const std::string end = TableKey(static_cast<Column>(static_cast<int>(Column::kChunks) + 1), "");
  std::vector<Span> spans = {{.begin = {}, .end = info.ranges.front().begin, .range = {}}};
  for (size_t i = 0; i < info.ranges.size(); ++i) {
    const bool is_last = i + 1 == info.ranges.size();
    spans.push_back({.begin = info.ranges[i].begin,
                     .end = is_last ? end : info.ranges[i + 1].begin,
                     .range = i});
  }
  spans.push_back({.begin = end, .end = {}, .range = {}});
  return spans;
}

TableReader::TableReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
TableReader::~TableReader() = default;

Result<std::shared_ptr<const TableReader>> TableReader::Open(std::shared_ptr<Storage> storage,
                                                             const TableInfo& info) {
  CAIRN_TRY_ASSIGN(TableFile file, TableFile::Open(storage, info));
  auto state = std::make_unique<State>(std::move(storage), std::move(file), info);
  const rocksdb::Status opened = state->reader.Open(state->file.name());
  if (!opened.ok()) return Fail(TableError(opened, "cannot open the table", state->file.path()));
  return std::shared_ptr<const TableReader>(new TableReader(std::move(state)));
}

const TableInfo& TableReader::info() const { return state_->info; }

std::string_view TableReader::path() const { return state_->file.path(); }
const std::vector<TableReader::Span>& TableReader::spans() const { return state_->spans; }

Result<const TableReader*> TableReader::FileOf(const Span& span) const {
  if (!span.range) return this;
  const MutexLock lock(state_->mutex);
  auto& range = state_->ranges[*span.range];
  if (range == nullptr) {
    CAIRN_TRY_ASSIGN(range, Open(state_->storage, InfoOf(state_->info.ranges[*span.range])));
  }
  return range.get();
}

std::unique_ptr<TableIterator> TableReader::NewIterator(TableAccess access,
                                                        std::string_view end) const {
  std::unique_ptr<TableIterator> iterator(new TableIterator(access, end));
  iterator->path_ = state_->file.path();
  if (state_->spans.empty()) {
    iterator->iterator_ = NewFileIterator(access, iterator->end_.get());
  } else {
    iterator->divided_ = this;
  }
  return iterator;
}

std::unique_ptr<rocksdb::Iterator> TableReader::NewFileIterator(
    TableAccess access, const TableIterator::Bound* end) const {
  rocksdb::ReadOptions options;
  if (end != nullptr) options.iterate_upper_bound = &end->slice;
  if (access == TableAccess::kBulk) {
    options.readahead_size = kBulkReadBytes;
    options.fill_cache = false;
  }
  // RocksDB declares the function non-const, but only reads.
  return std::unique_ptr<rocksdb::Iterator>(state_->reader.NewIterator(options));
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
  TableIterator iterator(TableAccess::kBulk, {});
  iterator.iterator_ = NewFileIterator(TableAccess::kBulk, nullptr);
  iterator.path_ = state_->file.path();
  CAIRN_TRY(iterator.Seek({}));
  uint64_t record_count = 0;
  for (; iterator.Valid(); ++record_count) CAIRN_TRY(iterator.Next());
  if (record_count == state_->info.record_count) return {};
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = fmt::format("the table has {} records and not {}", record_count,
                                           state_->info.record_count),
                    .file = state_->file.path()});
}

}  // namespace cairn::kv::internal
