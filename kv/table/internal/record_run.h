#pragma once
/// Sorted records in memory or in a temporary object, to be read once from the first to the last.
///
/// Only the process that writes the object reads it, so this is not a format: integers are those of
/// the processor, and the list of the blocks, with their checksums, remains in memory. Compression
/// would take more time than everything else that is done with a record. Instead, a record states
/// only what differs from the one before it, which is about a third of it for chunks of one tensor.
///
///   block      records, up to about 2 MiB of them
///   complete   the words of the record (record_set.h)
///   similar    u64 mask with bit 63 set, then the words of the key and the value whose bits are
///              set; the header and the other words are equal to the record before

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/base/error.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/internal/object_reader.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/record_set.h"

namespace cairn::kv::internal {

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
  std::vector<uint64_t> next_;
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
