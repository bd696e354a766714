#pragma once
/// Sorted records that do not fit into memory, in a temporary object.
///
/// Only the process that writes the object reads it, so this is not a format: integers are those of
/// the processor, and the index of the blocks, with their checksums, remains in memory. Compression
/// would take more time than everything else that is done with a record. Instead, a record states
/// only what differs from the one before it, which is about a third of it for chunks of one tensor.
///
///   block      entries, up to about 2 MiB of them
///   complete   u32 key bytes, u32 value bytes, u64 column, key, value; the key and the value are
///              padded to 8 bytes with zeros
///   similar    u64 mask with bit 63 set, then the words of the padded key and value whose bits are
///              set; the other words, the lengths and the column are those of the entry before

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/key.h"
#include "kv/commit/internal/stored_record.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/internal/object_reader.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// A record whose key and value are padded to words, one after the other.
struct PaddedRecord {
  Column column = Column::kSteps;
  uint32_t key_bytes = 0;
  uint32_t value_bytes = 0;
  std::vector<uint64_t> words;

  void Assign(const RecordView& record);
  bool HasLengthsOf(const PaddedRecord& other) const;
  /// The value is aligned to 8 bytes.
  RecordView View() const;
};

/// An object with records. Memory: 16 bytes per MiB or two.
struct RecordRun {
  struct Block {
    uint64_t size_bytes = 0;
    uint64_t checksum = 0;  // Checksum64
  };
  ObjectId id;  // of a table that no root reaches
  std::vector<Block> blocks;
};

/// Threads: one.
class RecordRunWriter {
 public:
  static Result<RecordRunWriter> Create(Storage& storage, const ObjectId& id);

  /// kUnavailable, kResourceExhausted: the storage cannot be written. kInvalidArgument: CheckRecord
  /// refuses the record.
  Result<void> Add(const RecordView& record);
  /// Completes the object. Errors are those of Add. Nothing can be added after this.
  Result<RecordRun> Finish();

 private:
  RecordRunWriter(Storage& storage, std::unique_ptr<ObjectWriter> object, const ObjectId& id)
      : storage_(storage), object_(std::move(object)), run_{.id = id, .blocks = {}} {}
  void AddComplete(const PaddedRecord& record);
  void AddSimilar(const PaddedRecord& record);
  Result<void> PutBlock();

  Storage& storage_;
  std::unique_ptr<ObjectWriter> object_;
  RecordRun run_;
  uint64_t size_bytes_ = 0;
  std::vector<uint64_t> block_;  // longer than what is used of it
  size_t used_words_ = 0;
  PaddedRecord last_;  // without words: none
  PaddedRecord next_;
};

/// A position among the records of a run. Memory: one block. Threads: one.
class RecordRunReader {
 public:
  /// Moves to the first record. Errors are those of Next.
  static Result<RecordRunReader> Open(std::shared_ptr<Storage> storage, const RecordRun& run);

  bool Valid() const { return is_valid_; }
  /// Requires Valid(). The result is valid until the next call of Next.
  const RecordView& record() const { return view_; }
  /// Moves to the next record. Requires Valid(). kDataLoss: the object is not the one that was
  /// written. kUnavailable, kNotFound: it cannot be read.
  Result<void> Next();

 private:
  RecordRunReader(ObjectReader object, std::vector<RecordRun::Block> blocks)
      : object_(std::move(object)), blocks_(std::move(blocks)) {}
  Result<void> ReadBlock();

  ObjectReader object_;
  std::vector<RecordRun::Block> blocks_;
  size_t next_block_ = 0;
  uint64_t offset_bytes_ = 0;  // of the next block
  std::vector<uint64_t> block_;
  size_t at_ = 0;  // the next entry, in block_
  PaddedRecord current_;
  RecordView view_;  // of current_
  bool is_valid_ = false;
};

}  // namespace cairn::kv::internal
