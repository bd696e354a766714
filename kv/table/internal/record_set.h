#pragma once
/// Records in memory, without an allocation or a pointer for each.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/div.h"
#include "kv/base/error.h"
#include "kv/base/key.h"

namespace cairn::kv::internal {

/// A record with the key that it has in tables (kv/base/key.h). Callbacks take it by reference:
/// passed as two values, the last one is stored on the stack in two halves and loaded as one, which
/// stalls the processor for 70 ns. Ownership: borrows.
struct TableRecord {
  std::string_view key;
  std::span<const std::byte> value;

  Column column() const { return static_cast<Column>(key.front()); }
};
using TableRecordCallback = std::function<Result<void>(const TableRecord&)>;

// A record as words: a header with the lengths, then the key and the value, each padded with zeros.

/// Requires a key and a value of less than 2 GiB each, so that bit 63 of the header is not set.
void AppendRecord(std::vector<uint64_t>& words, std::string_view key,
                  std::span<const std::byte> value);
constexpr size_t KeyBytes(uint64_t header) { return static_cast<uint32_t>(header); }
constexpr size_t KeyWords(uint64_t header) { return DivCeil(KeyBytes(header), sizeof(uint64_t)); }
constexpr size_t ValueBytes(uint64_t header) { return header >> 32; }
/// Returns the number of words of a record with this header.
constexpr size_t RecordWords(uint64_t header) {
  return 1 + KeyWords(header) + DivCeil(ValueBytes(header), sizeof(uint64_t));
}
/// Returns the record that begins with this word. Its value is aligned to 8 bytes.
inline TableRecord RecordAt(const uint64_t* words) {
  const auto* const value = reinterpret_cast<const std::byte*>(words + 1 + KeyWords(*words));
  return {.key = {reinterpret_cast<const char*>(words + 1), KeyBytes(*words)},
          .value = {value, ValueBytes(*words)}};
}

/// Records in the order in which they were added, until they are sorted. Memory: the records, at
/// most twice while they grow, and 24 bytes per record while they are visited if those of a column
/// were not added in the order of their keys. Threads: one.
class RecordSet {
 public:
  /// Returns the position of the record. Requires the key of a column, and a key and a value of
  /// less than 2 GiB each.
  size_t Add(std::string_view key, std::span<const std::byte> value);
  /// Removes the records, and keeps the memory for those that follow.
  void Clear();

  /// Returns the record at a position that Add returned since Clear. Valid until the next Add.
  TableRecord At(size_t position) const { return RecordAt(&words_[position]); }
  uint64_t size_bytes() const { return words_.size() * sizeof(uint64_t); }

  /// Calls `callback` with every record, ascending by key; with records of the same key in the
  /// order in which they were added.
  Result<void> ForEachInOrder(const TableRecordCallback& callback) const;

 private:
  /// A record by its place in the order of keys.
  struct Entry {
    size_t name = 0;     // the number of its name, in the order of the names
    uint64_t first = 0;  // the bytes of the key that follow the name, as a big-endian number
    size_t position = 0;
  };
  std::vector<Entry> SortedEntries() const;

  std::vector<uint64_t> words_;
  std::array<std::optional<size_t>, kColumnCount> last_{};  // the position of the last record
  bool is_in_order_ = true;                                 // in each column
};

}  // namespace cairn::kv::internal
