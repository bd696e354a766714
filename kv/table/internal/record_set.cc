// Sorts records by the number of their name and the bytes that follow it, without a look at the
// records: keys of the same tensor begin with the same long name.

#include "kv/table/internal/record_set.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <unordered_map>

namespace cairn::kv::internal {
namespace {

/// Returns the column and the FQN with its NUL at the beginning of a key; the complete key if there
/// is no NUL. Names have the order of the keys: none is the beginning of another one, unless it is
/// a complete key.
std::string_view NameOf(std::string_view key) {
  const size_t end = key.find('\0', 1);
  return end == std::string_view::npos ? key : key.substr(0, end + 1);
}

uint64_t FirstBytes(std::string_view text) {
  std::array<char, sizeof(uint64_t)> bytes{};
  text.copy(bytes.data(), bytes.size());
  return ReadBigEndian(bytes.data());
}

/// Numbers names in the order in which they appear.
class NameNumbers {
 public:
  size_t NumberOf(std::string_view name) {
    // Most often it is the last one, or the one that followed it in the records of another rank.
    for (size_t i = last_; i < std::min(last_ + 2, names_.size()); ++i) {
      if (names_[i] == name) return last_ = i;
    }
    last_ = numbers_.try_emplace(name, names_.size()).first->second;
    if (last_ == names_.size()) names_.push_back(name);
    return last_;
  }

  /// Returns the position of each name in the order of names, by its number.
  std::vector<size_t> Positions() const {
    std::vector<size_t> order(names_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [this](size_t number) { return names_[number]; });
    std::vector<size_t> positions(names_.size());
    for (size_t i = 0; i < order.size(); ++i) positions[order[i]] = i;
    return positions;
  }

 private:
  std::vector<std::string_view> names_;  // by number
  std::unordered_map<std::string_view, size_t> numbers_;
  size_t last_ = 0;
};

}  // namespace

void AppendRecord(std::vector<uint64_t>& words, std::string_view key,
                  std::span<const std::byte> value) {
  const uint64_t header = key.size() | uint64_t{value.size()} << 32;
  const size_t at = words.size();
  words.resize(at + RecordWords(header));
  uint64_t* const target = &words[at];
  target[0] = header;
  if (!key.empty()) std::memcpy(target + 1, key.data(), key.size());
  if (!value.empty()) std::memcpy(target + 1 + KeyWords(header), value.data(), value.size());
}

size_t RecordSet::Add(std::string_view key, std::span<const std::byte> value) {
  const auto column = static_cast<uint8_t>(key.front());
  std::optional<size_t>& last = last_[column];
  if (last && key < At(*last).key) is_in_order_ = false;
  const size_t position = words_.size();
  last = position;
  AppendRecord(words_, key, value);
  return position;
}

void RecordSet::Clear() {
  words_.clear();
  last_ = {};
  is_in_order_ = true;
}

std::vector<RecordSet::Entry> RecordSet::SortedEntries() const {
  std::vector<Entry> entries;
  NameNumbers names;
  for (size_t at = 0; at < words_.size(); at += RecordWords(words_[at])) {
    const std::string_view key = At(at).key;
    const std::string_view name = NameOf(key);
    entries.push_back({.name = names.NumberOf(name),
                       .first = FirstBytes(key.substr(name.size())),
                       .position = at});
  }
  const std::vector<size_t> positions = names.Positions();
  for (Entry& entry : entries) entry.name = positions[entry.name];
  std::ranges::stable_sort(entries, [this](const Entry& a, const Entry& b) {
    if (a.name != b.name) return a.name < b.name;
    if (a.first != b.first) return a.first < b.first;
    return At(a.position).key < At(b.position).key;
  });
  return entries;
}

Result<void> RecordSet::ForEachInOrder(const TableRecordCallback& callback) const {
  if (!is_in_order_) {
    for (const Entry& entry : SortedEntries()) CAIRN_TRY(callback(At(entry.position)));
    return {};
  }
  for (size_t column = 0; column < kColumnCount; ++column) {
    if (!last_[column]) continue;
    for (size_t at = 0; at <= *last_[column]; at += RecordWords(words_[at])) {
      const TableRecord record = At(at);
      if (record.column() == static_cast<Column>(column)) CAIRN_TRY(callback(record));
    }
  }
  return {};
}

}  // namespace cairn::kv::internal
