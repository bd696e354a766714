#pragma once
/// Records in memory, without an allocation or a pointer for each, and sorted runs of them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/div.h"
#include "kv/base/error.h"
#include "kv/base/key.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/internal/object_reader.h"
#include "kv/storage/storage.h"

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

/// Returns the value of the record that begins with this word, to be changed.
inline std::span<std::byte> MutableValueAt(uint64_t* words) {
  return {reinterpret_cast<std::byte*>(words + 1 + KeyWords(*words)), ValueBytes(*words)};
}

/// Records in the order in which they were added. Memory: the records, in blocks of up to 256 KiB
/// (or one larger record), so that they remain where they are. Threads: one.
class RecordList {
 public:
  /// Returns the record, which is valid until Clear. `key` is its key within the column. Requires a
  /// key and a value of less than 2 GiB each.
  TableRecord Add(Column column, std::string_view key, std::span<const std::byte> value);
  TableRecord Add(const TableRecord& record);
  /// Removes the records, and keeps the memory of one block for those that follow.
  void Clear();

  /// Calls `visit` with the words of every record.
  template <typename Visit>
  Result<void> ForEach(const Visit& visit) const {
    for (const Block& block : blocks_) {
      for (size_t at = 0; at < block.used_words; at += RecordWords(block.words[at])) {
        CAIRN_TRY(visit(&block.words[at]));
      }
    }
    return {};
  }
  uint64_t count() const { return count_; }
  uint64_t size_bytes() const { return size_words_ * sizeof(uint64_t); }

 private:
  struct Block {
    std::unique_ptr<uint64_t[]> words;
    size_t used_words = 0;
    size_t size_words = 0;
  };
  uint64_t* Append(size_t key_bytes, std::span<const std::byte> value);

  std::vector<Block> blocks_;
  uint64_t count_ = 0;
  uint64_t size_words_ = 0;  // of the records
};

/// Records until they are sorted. Memory: the records, and 56 bytes per record of a column while
/// they are visited if those of the column were not added in the order of their keys. Threads: one.
class RecordSet {
 public:
  /// Returns the record, which is valid until Clear. Requires a key and a value of less than 2 GiB
  /// each.
  TableRecord Add(const TableRecord& record);
  /// Removes the records.
  void Clear();

  uint64_t size_bytes() const { return size_bytes_; }
  /// Calls `visit` with the words of every record, ascending by key; with records of the same key
  /// in the order in which they were added.
  template <typename Visit>
  Result<void> ForEachInOrder(const Visit& visit) const {
    for (const auto& [column, records] : columns_) {
      if (IsInOrder(records)) {
        CAIRN_TRY(records.ForEach(visit));
        continue;
      }
      for (const uint64_t* const words : Sort(records)) CAIRN_TRY(visit(words));
    }
    return {};
  }

 private:
  static bool IsInOrder(const RecordList& records);
  static std::vector<const uint64_t*> Sort(const RecordList& records);

  std::map<Column, RecordList> columns_;
  uint64_t size_bytes_ = 0;
};

/// Sorted records in memory or in a temporary object, to be read once from the first to the last.
///
/// Only the process that writes the object reads it, so this is not a format: integers are those of
/// the processor, and the list of the blocks, with their checksums, remains in memory. Compression
/// would take more time than everything else that is done with a record. Instead, a record states
/// only what differs from the one before it, which is about a third of it for chunks of one tensor.
///
///   block      records, up to about 2 MiB of them
///   complete   the words of the record (AppendRecord)
///   similar    u64 mask with bit 63 set, then the words of the key and the value whose bits are
///              set; the header and the other words are equal to the record before
struct RecordRun {
  struct Block {
    std::vector<uint64_t> words;  // of a run in memory
    uint64_t size_bytes = 0;
    uint64_t checksum = 0;  // Checksum64, of a block in an object
  };
  std::optional<ObjectId> id;  // of a table that no root reaches; nothing: the run is in memory
  std::vector<Block> blocks;

  uint64_t size_bytes() const;
};

/// Memory: a block, and a run in memory. Threads: one.
class RecordRunWriter {
 public:
  /// Writes runs in memory, one after another.
  RecordRunWriter() = default;
  /// Writes one run to an object. `storage` must outlive the writer.
  static Result<RecordRunWriter> Create(Storage& storage, const ObjectId& id);

  // Each returns kUnavailable or kResourceExhausted if the storage cannot be written, and no error
  // if the run is in memory.
  /// Adds a record by its words.
  Result<void> Add(const uint64_t* words);
  /// Requires a key and a value of less than 2 GiB each.
  Result<void> Add(const TableRecord& record);
  /// Completes the run.
  Result<RecordRun> Finish();
  /// Length of the blocks of the current run.
  uint64_t size_bytes() const { return size_bytes_ + used_words_ * sizeof(uint64_t); }

 private:
  Result<void> EndBlock();

  Storage* storage_ = nullptr;  // null: in memory
  std::unique_ptr<ObjectWriter> object_;
  RecordRun run_;
  uint64_t size_bytes_ = 0;      // of complete blocks
  std::vector<uint64_t> block_;  // longer than what is used of it
  size_t used_words_ = 0;
  std::vector<uint64_t> last_;  // the words of the last record; empty: there is none
  std::vector<uint64_t> next_;  // memory for the words of a record
};

/// A position among the records of a run. Memory: one block of a run in an object. Threads: one.
class RecordRunReader {
 public:
  /// Moves to the first record. `run` must outlive the reader. `storage` may be null if the run is
  /// in memory. Has the errors of Next.
  static Result<RecordRunReader> Open(std::shared_ptr<Storage> storage, const RecordRun& run);

  bool Valid() const { return is_valid_; }
  /// Requires Valid(). The result is valid until the next call of Next.
  const TableRecord& record() const { return record_; }
  /// Moves to the next record. Requires Valid(). There are no errors if the run is in memory.
  /// kDataLoss: the object is not the one that was written. kUnavailable, kNotFound: it cannot be
  /// read.
  Result<void> Next();

 private:
  explicit RecordRunReader(const RecordRun& run) : run_(&run) {}
  Result<void> BeginBlock();

  const RecordRun* run_;
  std::optional<ObjectReader> object_;
  size_t next_block_ = 0;
  uint64_t offset_bytes_ = 0;       // of the next block, in the object
  std::vector<uint64_t> read_;      // the block, from the object
  std::span<const uint64_t> rest_;  // of the block
  std::vector<uint64_t> current_;   // the words of the record
  TableRecord record_;              // in current_
  bool is_valid_ = false;
};

}  // namespace cairn::kv::internal
