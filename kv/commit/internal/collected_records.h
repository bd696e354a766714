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

#include "kv/base/error.h"
#include "kv/base/key.h"
#include "kv/commit/internal/stored_record.h"

namespace cairn::kv::internal {

/// Memory: the records without the names of their tensors if ranks add them, and 8 bytes per
/// record. Threads: one.
class CollectedRecords {
 public:
  void Add(Column column, std::string_view key, std::span<const std::byte> value);
  /// Records of the column kChunks that follow each other in memory. Their keys begin with `name`,
  /// an FQN and NUL; what they have as their own keys follows it.
  struct Chunks {
    std::string_view name;
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    const std::byte* last = nullptr;  // the last record
    bool is_in_order = true;
  };
  /// Adds all records that are in `block`, which has `block_bytes`.
  void AddChunks(std::unique_ptr<uint64_t[]> block, size_t block_bytes,
                 std::span<const Chunks> chunks);
  uint64_t size_bytes() const { return bytes_; }
  void Clear() { *this = CollectedRecords(); }

  /// Calls `callback` with every record, column by column, ascending by key; with records of the
  /// same key in the order in which they were added. Values are aligned to 8 bytes.
  using Callback = std::function<Result<void>(const RecordView&)>;
  Result<void> ForEachInOrder(const Callback& callback);

 private:
  /// Records that follow each other in memory.
  struct Range {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    size_t name_bytes = 0;  // of their keys, which the bucket has
  };
  /// Records whose keys begin with `name`.
  struct Bucket {
    std::string name;
    std::vector<Range> ranges;
    const std::byte* last = nullptr;
    bool is_in_order = true;

    /// Adds the record at `at`.
    void Add(const std::byte* at, size_t name_bytes);
    void Add(const Chunks& chunks);
    std::string_view last_key() const {
      return StoredRecord(last).key().substr(ranges.back().name_bytes);
    }
  };
  /// Records of a column, in one of two forms. A rank adds its own records in order, and one bucket
  /// without a name suffices. If records of other ranks follow, the column is not in order, but
  /// most of one tensor are, and each rank adds its tensors in about the same order: then there is
  /// one bucket per tensor.
  struct ColumnRecords {
    Bucket list;                                           // until it is not in order
    std::deque<Bucket> buckets;                            // from then on
    std::unordered_map<std::string_view, size_t> by_name;  // in buckets
    size_t last_bucket = 0;                                // in buckets, if there are any

    void MoveToBuckets();
    Bucket& BucketOf(std::string_view name);
  };

  std::byte* Reserve(size_t bytes);
  std::byte* Copy(std::string_view key, std::span<const std::byte> value);
  static Result<void> VisitBucket(Column column, const Bucket& bucket, const Callback& callback);

  std::vector<std::unique_ptr<uint64_t[]>> blocks_;  // whose size in bytes is a multiple of 8
  size_t block_left_ = 0;
  std::byte* next_ = nullptr;
  uint64_t bytes_ = 0;
  std::map<Column, ColumnRecords> columns_;
};

}  // namespace cairn::kv::internal
