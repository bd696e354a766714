#pragma once
/// The records of a step that several ranks write, in memory from the time when their manifests are
/// read until the commit. They are returned in the order of the index, which adds sorted keys
/// several times faster than keys in the order of the ranks.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/error.h"
#include "kv/key.h"

namespace cairn::kv::internal {

/// Memory: at most kLimitBytes of records, and 16 bytes per record. Beyond that limit all records
/// are dropped, and the manifest has to be read again. Threads: one.
class CollectedRecords {
 public:
  static constexpr uint64_t kLimitBytes = 512 << 20;

  void Add(Column column, std::string_view key, std::span<const std::byte> value);
  /// Returns false if there were too many records and they were dropped.
  bool complete() const { return complete_; }

  /// Calls `callback` with every record, column by column, ascending by key; with records of the
  /// same key in the order in which they were added. Values are aligned to 8 bytes. Requires
  /// complete().
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
  /// Keys of one tensor. They differ only in their offsets, and most are added in order.
  using Bucket = std::vector<Entry>;

  char* Reserve(size_t bytes);

  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t block_left_ = 0;
  char* next_ = nullptr;
  uint64_t bytes_ = 0;
  bool complete_ = true;
  std::unordered_map<std::string, Bucket> buckets_;  // by column and the key's FQN
  std::string name_;                                 // key of last_ in buckets_
  Bucket* last_ = nullptr;
};

}  // namespace cairn::kv::internal
