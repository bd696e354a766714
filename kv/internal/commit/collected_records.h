#pragma once
/// The records of a step by many ranks, kept in memory from when their manifests are read until the
/// commit, and then handed out in the order of the index: it takes sorted keys several times faster
/// than those of rank after rank.

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

/// Memory: at most kLimitBytes of records, and 16 bytes a record; beyond that it forgets all, and
/// the manifest has to be read again. Threads: one.
class CollectedRecords {
 public:
  static constexpr uint64_t kLimitBytes = 512 << 20;

  void Add(Column column, std::string_view key, std::span<const std::byte> value);
  /// False: there were too many.
  bool complete() const { return complete_; }

  /// Column by column, ascending by key; a key that was added twice comes twice, as it was added.
  /// Values are aligned to 8 bytes. Requires complete().
  using Callback =
      std::function<Result<void>(Column, std::string_view key, std::span<const std::byte> value)>;
  Result<void> ForEachInOrder(const Callback& callback);

 private:
  struct Entry {
    const char* value = nullptr;  // then the key
    uint32_t value_bytes = 0;
    uint32_t key_bytes = 0;

    std::string_view key() const { return {value + value_bytes, key_bytes}; }
  };
  /// Keys of one tensor: they differ only in their offsets, and mostly come in order.
  using Bucket = std::vector<Entry>;

  char* Reserve(size_t bytes);

  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t block_left_ = 0;
  char* next_ = nullptr;
  uint64_t bytes_ = 0;
  bool complete_ = true;
  std::unordered_map<std::string, Bucket> buckets_;  // by column and the key's FQN
  std::string name_;                                 // of last_
  Bucket* last_ = nullptr;
};

}  // namespace cairn::kv::internal
