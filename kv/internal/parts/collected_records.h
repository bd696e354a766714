#pragma once
/// The records of a step, in memory until the commit, which needs them in the order of their keys.

#include <cstdint>
#include <deque>
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

/// Memory: the records, and 16 to 32 bytes per record. Threads: one.
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
    const char* value = nullptr;  // preceded by the key
    uint32_t value_bytes = 0;
    uint32_t key_bytes = 0;

    /// In a bucket, without the FQN.
    std::string_view key() const { return {value - key_bytes, key_bytes}; }
    std::span<const std::byte> Value() const {
      return std::as_bytes(std::span(value, value_bytes));
    }
  };
  using Entries = std::vector<Entry>;
  /// The records of one FQN.
  struct Bucket {
    std::string fqn;
    Entries entries;
    bool is_in_order = true;

    void Add(const Entry& entry);
  };
  /// Records of a column, in one of two forms. A rank adds its own records in order, and a list
  /// suffices. If records of other ranks follow, the column is not in order, but most of one tensor
  /// are, and each rank adds its tensors in about the same order.
  struct ColumnRecords {
    bool is_in_order = true;
    Entries list;                                         // while in order
    std::deque<Bucket> buckets;                           // otherwise
    std::unordered_map<std::string_view, size_t> by_fqn;  // in buckets
    size_t last_bucket = 0;                               // in buckets, if there are any

    void MoveToBuckets();
    Bucket& BucketOf(std::string_view fqn);
  };

  static void Prefetch(const Entry& entry);
  char* Reserve(size_t bytes);
  static Result<void> VisitBucket(Column column, Bucket& bucket, const Callback& callback);
  Entry Copy(std::string_view key, std::span<const std::byte> value);

  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t block_left_ = 0;
  char* next_ = nullptr;
  uint64_t bytes_ = 0;
  std::map<Column, ColumnRecords> columns_;
};

}  // namespace cairn::kv::internal
