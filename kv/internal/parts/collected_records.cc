// Records in blocks of memory, in lists or in buckets by FQN.

#include "kv/internal/parts/collected_records.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kv/div.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kBlockBytes = 4 << 20;

}  // namespace

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

void CollectedRecords::Add(Column column, std::string_view key, std::span<const std::byte> value) {
  char* const at = Reserve(RoundUp(value.size() + key.size(), 8));
  if (!value.empty()) std::memcpy(at, value.data(), value.size());
  std::memcpy(at + value.size(), key.data(), key.size());
  columns_[column].Add({.value = at,
                        .value_bytes = static_cast<uint32_t>(value.size()),
                        .key_bytes = static_cast<uint32_t>(key.size())});
}

void CollectedRecords::ColumnRecords::Add(const Entry& entry) {
  if (!is_in_order) return AddToBucket(entry);
  if (list.empty() || list.back().key() <= entry.key()) return list.push_back(entry);
  is_in_order = false;
  for (const Entry& earlier : std::exchange(list, {})) AddToBucket(earlier);
  AddToBucket(entry);
}

void CollectedRecords::ColumnRecords::AddToBucket(const Entry& entry) {
  const std::string_view fqn = entry.key().substr(0, entry.key().find('\0'));
  if (last_bucket == nullptr || *last_fqn != fqn) {
    const auto found = buckets.try_emplace(std::string(fqn)).first;
    last_fqn = &found->first;
    last_bucket = &found->second;
  }
  last_bucket->push_back(entry);
}

Result<void> CollectedRecords::ForEachInOrder(const Callback& callback) {
  for (auto& [column, records] : columns_) {
    const auto visit = [&](const Entries& entries) -> Result<void> {
      for (const Entry& entry : entries) {
        CAIRN_TRY(callback(column, entry.key(),
                           std::as_bytes(std::span(entry.value, entry.value_bytes))));
      }
      return {};
    };
    CAIRN_TRY(visit(records.list));
    std::vector<std::pair<const std::string, Entries>*> order;
    for (auto& bucket : records.buckets) order.push_back(&bucket);
    // The order of FQNs is that of the keys, because NUL ends the FQN in them.
    std::ranges::sort(order, {},
                      [](const auto* bucket) -> const std::string& { return bucket->first; });
    for (auto* const bucket : order) {
      if (!std::ranges::is_sorted(bucket->second, {}, &Entry::key)) {
        std::ranges::stable_sort(bucket->second, {}, &Entry::key);
      }
      CAIRN_TRY(visit(bucket->second));
    }
  }
  return {};
}

}  // namespace cairn::kv::internal
