#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A small cache that drops what was not used for the longest time.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace cairn::kv {

/// At most `kMaxCount` values by their keys. Cost: all members compare up to that many keys.
/// Threads: one at a time.
template <typename Key, typename Value, size_t kMaxCount>
class RecentlyUsed {
 public:
  /// Returns the value, which then is the one that was used last; null if there is none. Valid
  /// until the next call of another member.
  const Value* Find(const Key& key) {
    const auto found = std::ranges::find(entries_, key, &Entry::first);
    if (found == entries_.end()) return nullptr;
    std::rotate(entries_.begin(), found, found + 1);
    return &entries_.front().second;
  }
  /// Adds the value, in place of another one with this key.
  void Put(const Key& key, Value value) {
    RemoveIf([&](const Key& other, const Value&) { return other == key; });
    if (entries_.size() == kMaxCount) entries_.pop_back();
    entries_.emplace(entries_.begin(), key, std::move(value));
  }
  /// Removes the values for which `is_removed(key, value)` returns true.
  template <typename Predicate>
  void RemoveIf(const Predicate& is_removed) {
    std::erase_if(entries_, [&](const Entry& e) { return is_removed(e.first, e.second); });
  }

 private:
  using Entry = std::pair<Key, Value>;
  std::vector<Entry> entries_;  // the last used one first
};

}  // namespace cairn::kv
