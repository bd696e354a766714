#pragma once
/// The records of a step, in memory until the commit, which needs them in the order of their keys.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/error.h"
#include "kv/key.h"

namespace cairn::kv::internal {

/// Memory: the records, and 16 bytes per record. Threads: one.
class CollectedRecords {
 public:
  void Add(Column column, std::string_view key, std::span<const std::byte> value);
  uint64_t size_bytes() const { return bytes_; }
  void Clear() { *this = CollectedRecords(); }

  /// Calls `callback` with every record, column by column, ascending by key; with records of the
  /// same key in the order in which they were added. Values are aligned to 8 bytes.
  using Callback =
      std::function<Result<void>(Column, std::string_view key, std::span<const std::byte> value)>;
  Result<void> ForEachInOrder(const Callback& callback);

 private:
  struct Entry {
    const char* value = nullptr;  // followed by the key
    uint32_t value_bytes = 0;
    uint32_t key_bytes = 0;

    std::string_view key() const { return {value + value_bytes, key_bytes}; }
  };
  using Entries = std::vector<Entry>;
  /// Records of a column, in one of two forms. A rank adds its own records in order, and a list
  /// suffices. If records of other ranks follow, the column is not in order, but most of one tensor
  /// are.
  struct ColumnRecords {
    bool is_in_order = true;
    Entries list;                                      // while in order
    std::unordered_map<std::string, Entries> buckets;  // by FQN; otherwise
    const std::string* last_fqn = nullptr;             // key of last_bucket in buckets
    Entries* last_bucket = nullptr;

    void Add(const Entry& entry);

   private:
    void AddToBucket(const Entry& entry);
  };

  char* Reserve(size_t bytes);

  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t block_left_ = 0;
  char* next_ = nullptr;
  uint64_t bytes_ = 0;
  std::map<Column, ColumnRecords> columns_;
};

}  // namespace cairn::kv::internal
