#pragma once
/// Records in memory, in the order in which they were added.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::kv::internal {

/// Keeps records in blocks, so that growing never copies what is there. Threads: one.
class RecordBuffer {
 public:
  /// Requires a key and a value that CheckRecord accepts.
  void Add(std::string_view key, std::span<const std::byte> value);
  void Clear();
  /// As Clear, but keeps the memory for the records that follow.
  void ClearRecords();

  uint64_t record_count() const { return record_count_; }
  /// Memory of the records, with what each of them costs.
  uint64_t size_bytes() const { return size_bytes_; }

  /// A position in a buffer. Adding to the buffer invalidates it.
  class Cursor {
   public:
    explicit Cursor(const RecordBuffer& buffer);
    bool Valid() const { return block_ < buffer_.blocks_.size(); }
    // Require Valid().
    void Next();
    std::string_view key() const { return key_; }
    std::span<const std::byte> value() const { return value_; }

   private:
    void Load();

    const RecordBuffer& buffer_;
    size_t block_ = 0;
    size_t offset_bytes_ = 0;  // in the block, of the next record
    std::string_view key_;
    std::span<const std::byte> value_;
  };

 private:
  struct Header {
    uint32_t key_bytes = 0;
    uint32_t value_bytes = 0;
  };

  std::vector<std::string> blocks_;  // headers, keys and values
  std::vector<std::string> unused_;  // empty blocks
  uint64_t record_count_ = 0;
  uint64_t size_bytes_ = 0;
};

}  // namespace cairn::kv::internal
