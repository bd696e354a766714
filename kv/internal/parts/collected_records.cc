// Records in blocks of memory, in buckets by FQN.

#include "kv/internal/parts/collected_records.h"

#include <algorithm>
#include <cstring>

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
  const std::string_view fqn = key.substr(0, key.find('\0'));
  if (last_ == nullptr || name_.front() != static_cast<char>(column) ||
      std::string_view(name_).substr(1) != fqn) {
    name_.assign(1, static_cast<char>(column));
    name_.append(fqn);
    last_ = &buckets_[name_];
  }
  char* const at = Reserve(RoundUp(value.size() + key.size(), 8));
  if (!value.empty()) std::memcpy(at, value.data(), value.size());
  std::memcpy(at + value.size(), key.data(), key.size());
  last_->push_back({.value = at,
                    .value_bytes = static_cast<uint32_t>(value.size()),
                    .key_bytes = static_cast<uint32_t>(key.size())});
}

Result<void> CollectedRecords::ForEachInOrder(const Callback& callback) {
  std::vector<std::pair<const std::string, Bucket>*> order;
  for (auto& bucket : buckets_) order.push_back(&bucket);
  // Sort by column, then FQN. This is the order of the keys, because NUL ends the FQN in them.
  std::ranges::sort(order, {},
                    [](const auto* bucket) -> const std::string& { return bucket->first; });
  for (auto* const bucket : order) {
    const auto column = static_cast<Column>(bucket->first.front());
    if (!std::ranges::is_sorted(bucket->second, {}, &Entry::key)) {
      std::ranges::stable_sort(bucket->second, {}, &Entry::key);
    }
    for (const Entry& entry : bucket->second) {
      CAIRN_TRY(
          callback(column, entry.key(), std::as_bytes(std::span(entry.value, entry.value_bytes))));
    }
  }
  return {};
}

}  // namespace cairn::kv::internal
