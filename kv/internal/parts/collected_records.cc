// Records in blocks of memory, in lists or in buckets by FQN.

#include "kv/internal/parts/collected_records.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kv/div.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kBlockBytes = 4 << 20;
constexpr size_t kCacheLineBytes = 64;
constexpr size_t kPrefetched = 8;  // records

std::string_view FqnOf(std::string_view key) { return key.substr(0, key.find('\0')); }

}  // namespace

void CollectedRecords::Prefetch(const Entry& entry) {
  const char* const end = entry.value + std::min<size_t>(entry.value_bytes, 4 * kCacheLineBytes);
  for (const char* at = entry.value - entry.key_bytes; at < end; at += kCacheLineBytes) {
    __builtin_prefetch(at);
  }
}

char* CollectedRecords::Reserve(size_t bytes) {
  if (bytes > block_left_) {
    block_left_ = std::max(kBlockBytes, bytes);
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(block_left_));
    next_ = blocks_.back().get();
  }
  char* const reserved = next_;
  next_ += bytes;
  block_left_ -= bytes;
  bytes_ += bytes;
  return reserved;
}

CollectedRecords::Entry CollectedRecords::Copy(std::string_view key,
                                               std::span<const std::byte> value) {
  const size_t before_value = RoundUp(key.size(), 8);
  char* const at = Reserve(before_value + RoundUp(value.size(), 8)) + before_value;
  std::memcpy(at - key.size(), key.data(), key.size());
  if (!value.empty()) std::memcpy(at, value.data(), value.size());
  return {.value = at,
          .value_bytes = static_cast<uint32_t>(value.size()),
          .key_bytes = static_cast<uint32_t>(key.size())};
}

void CollectedRecords::Add(Column column, std::string_view key, std::span<const std::byte> value) {
  ColumnRecords& records = columns_[column];
  if (records.is_in_order && !records.list.empty() && key < records.list.back().key()) {
    records.MoveToBuckets();
  }
  if (records.is_in_order) return records.list.push_back(Copy(key, value));
  const std::string_view fqn = FqnOf(key);
  records.BucketOf(fqn).Add(Copy(key.substr(fqn.size()), value));
}

void CollectedRecords::Bucket::Add(const Entry& entry) {
  if (!entries.empty() && entry.key() < entries.back().key()) is_in_order = false;
  entries.push_back(entry);
}

void CollectedRecords::ColumnRecords::MoveToBuckets() {
  is_in_order = false;
  for (Entry& entry : std::exchange(list, {})) {
    const std::string_view fqn = FqnOf(entry.key());
    entry.key_bytes -= static_cast<uint32_t>(fqn.size());
    BucketOf(fqn).Add(entry);
  }
}

CollectedRecords::Bucket& CollectedRecords::ColumnRecords::BucketOf(std::string_view fqn) {
  // Most often the bucket is the last one, or the one that followed it in the records of another
  // rank.
  for (size_t i = last_bucket; i < std::min(last_bucket + 2, buckets.size()); ++i) {
    if (buckets[i].fqn != fqn) continue;
    last_bucket = i;
    return buckets[i];
  }
  const auto found = by_fqn.find(fqn);
  if (found != by_fqn.end()) {
    last_bucket = found->second;
  } else {
    last_bucket = buckets.size();
    buckets.push_back({.fqn = std::string(fqn)});
    by_fqn.emplace(buckets.back().fqn, last_bucket);
  }
  return buckets[last_bucket];
}

Result<void> CollectedRecords::ForEachInOrder(const Callback& callback) {
  for (auto& [column, records] : columns_) {
    for (const Entry& entry : records.list) {
      CAIRN_TRY(callback(column, entry.key(), entry.Value()));
    }
    std::vector<Bucket*> order;
    for (Bucket& bucket : records.buckets) order.push_back(&bucket);
    // The order of FQNs is that of the keys, because NUL ends the FQN in them.
    std::ranges::sort(order, {}, &Bucket::fqn);
    for (Bucket* const bucket : order) CAIRN_TRY(VisitBucket(column, *bucket, callback));
  }
  return {};
}

Result<void> CollectedRecords::VisitBucket(Column column, Bucket& bucket,
                                           const Callback& callback) {
  if (!bucket.is_in_order) std::ranges::stable_sort(bucket.entries, {}, &Entry::key);
  bucket.is_in_order = true;
  std::string key = bucket.fqn;
  for (size_t i = 0; i < bucket.entries.size(); ++i) {
    // Records of one FQN come from many ranks and are far apart in memory.
    if (i + kPrefetched < bucket.entries.size()) Prefetch(bucket.entries[i + kPrefetched]);
    const Entry& entry = bucket.entries[i];
    key.resize(bucket.fqn.size());
    key.append(entry.key());
    CAIRN_TRY(callback(column, key, entry.Value()));
  }
  return {};
}

}  // namespace cairn::kv::internal
