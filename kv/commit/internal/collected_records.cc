// Records in blocks of memory, in one list or in buckets by name.

#include "kv/commit/internal/collected_records.h"

#include <algorithm>
#include <utility>

namespace cairn::kv::internal {
namespace {

constexpr size_t kBlockBytes = 4 << 20;
constexpr size_t kCacheLineBytes = 64;
constexpr size_t kPrefetched = 8;  // records
constexpr size_t kScatteredBytes = 4 * kCacheLineBytes;
constexpr size_t kPrefetchedBytes = 16 * kCacheLineBytes;

/// Returns the FQN at the beginning of a key, with its NUL; the complete key if there is no NUL.
std::string_view NameOf(std::string_view key) {
  const size_t end = key.find('\0');
  return end == std::string_view::npos ? key : key.substr(0, end + 1);
}

bool HasNames(Column column) {
  return column == Column::kTensors || column == Column::kChunks || column == Column::kValues;
}

/// Reads a little of what is needed soon into the cache: processors do not recognize the order in
/// which records are read well enough.
void Prefetch(const std::byte* at, size_t bytes) {
  bytes = std::min(bytes, kPrefetchedBytes);
  for (size_t i = 0; i < bytes; i += kCacheLineBytes) __builtin_prefetch(at + i);
}

}  // namespace

std::byte* CollectedRecords::Reserve(size_t bytes) {
  if (bytes > block_left_) {
    const size_t block_bytes = std::max(kBlockBytes, bytes);
    blocks_.push_back(std::make_unique_for_overwrite<uint64_t[]>(block_bytes / sizeof(uint64_t)));
    block_left_ = block_bytes;
    next_ = reinterpret_cast<std::byte*>(blocks_.back().get());
  }
  std::byte* const reserved = next_;
  next_ += bytes;
  block_left_ -= bytes;
  bytes_ += bytes;
  return reserved;
}

std::byte* CollectedRecords::Copy(std::string_view key, std::span<const std::byte> value) {
  std::byte* const at = Reserve(StoredRecord::Size(key.size(), value.size()));
  StoredRecord::Write(at, key, value);
  return at;
}

void CollectedRecords::Add(Column column, std::string_view key, std::span<const std::byte> value) {
  ColumnRecords& records = columns_[column];
  if (records.buckets.empty()) {
    records.list.Add(Copy(key, value), 0);
    if (!records.list.is_in_order && HasNames(column)) records.MoveToBuckets();
    return;
  }
  const std::string_view name = NameOf(key);
  records.BucketOf(name).Add(Copy(key.substr(name.size()), value), 0);
}

void CollectedRecords::AddChunks(std::unique_ptr<uint64_t[]> block, size_t block_bytes,
                                 std::span<const Chunks> chunks) {
  blocks_.push_back(std::move(block));
  bytes_ += block_bytes;
  ColumnRecords& column = columns_[Column::kChunks];
  if (column.buckets.empty()) column.MoveToBuckets();
  for (const Chunks& added : chunks) column.BucketOf(added.name).Add(added);
}

void CollectedRecords::Bucket::Add(const std::byte* at, size_t name_bytes) {
  const StoredRecord record(at);
  if (last != nullptr && record.key().substr(name_bytes) < last_key()) is_in_order = false;
  last = at;
  const std::byte* const end = at + record.size_bytes();
  if (!ranges.empty() && ranges.back().end == at && ranges.back().name_bytes == name_bytes) {
    ranges.back().end = end;
  } else {
    ranges.push_back({.begin = at, .end = end, .name_bytes = name_bytes});
  }
}

void CollectedRecords::Bucket::Add(const Chunks& chunks) {
  if (!chunks.is_in_order || (last != nullptr && StoredRecord(chunks.begin).key() < last_key())) {
    is_in_order = false;
  }
  last = chunks.last;
  ranges.push_back({.begin = chunks.begin, .end = chunks.end, .name_bytes = 0});
}

void CollectedRecords::ColumnRecords::MoveToBuckets() {
  for (const Range& range : std::exchange(list, {}).ranges) {
    for (const std::byte* at = range.begin; at < range.end;) {
      const StoredRecord record(at);
      const std::string_view name = NameOf(record.key());
      BucketOf(name).Add(at, name.size());
      at += record.size_bytes();
    }
  }
}

CollectedRecords::Bucket& CollectedRecords::ColumnRecords::BucketOf(std::string_view name) {
  // Most often the bucket is the last one, or the one that followed it in the records of another
  // rank.
  for (size_t i = last_bucket; i < std::min(last_bucket + 2, buckets.size()); ++i) {
    if (buckets[i].name != name) continue;
    last_bucket = i;
    return buckets[i];
  }
  const auto found = by_name.find(name);
  if (found != by_name.end()) {
    last_bucket = found->second;
  } else {
    last_bucket = buckets.size();
    buckets.push_back({.name = std::string(name)});
    by_name.emplace(buckets.back().name, last_bucket);
  }
  return buckets[last_bucket];
}

Result<void> CollectedRecords::ForEachInOrder(const Callback& callback) {
  for (const auto& [column, records] : columns_) {
    CAIRN_TRY(VisitBucket(column, records.list, callback));
    std::vector<const Bucket*> order;
    for (const Bucket& bucket : records.buckets) order.push_back(&bucket);
    // The order of names is that of the keys: no name is the beginning of another one, unless it is
    // a complete key.
    std::ranges::sort(order, {}, &Bucket::name);
    for (const Bucket* const bucket : order) CAIRN_TRY(VisitBucket(column, *bucket, callback));
  }
  return {};
}

Result<void> CollectedRecords::VisitBucket(Column column, const Bucket& bucket,
                                           const Callback& callback) {
  std::string key = bucket.name;
  RecordView view{.column = column};
  const auto visit = [&](const std::byte* at, size_t name_bytes) {
    const StoredRecord record(at);
    key.resize(bucket.name.size());
    key.append(record.key().substr(name_bytes));
    view.key = key;
    view.value = record.value();
    return callback(view);
  };
  if (bucket.is_in_order) {
    for (const Range& range : bucket.ranges) {
      for (const std::byte* at = range.begin; at < range.end; at += StoredRecord(at).size_bytes()) {
        CAIRN_TRY(visit(at, range.name_bytes));
      }
    }
    return {};
  }
  struct Entry {
    const std::byte* at;
    size_t name_bytes;
    std::string_view Key() const { return StoredRecord(at).key().substr(name_bytes); }
  };
  std::vector<Entry> entries;
  for (const Range& range : bucket.ranges) {
    for (const std::byte* at = range.begin; at < range.end; at += StoredRecord(at).size_bytes()) {
      entries.push_back({.at = at, .name_bytes = range.name_bytes});
    }
  }
  std::ranges::stable_sort(entries, {}, &Entry::Key);
  for (size_t i = 0; i < entries.size(); ++i) {
    // Records of one name come from many ranks and are far apart in memory.
    if (i + kPrefetched < entries.size()) Prefetch(entries[i + kPrefetched].at, kScatteredBytes);
    CAIRN_TRY(visit(entries[i].at, entries[i].name_bytes));
  }
  return {};
}

}  // namespace cairn::kv::internal
