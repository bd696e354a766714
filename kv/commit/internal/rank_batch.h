#pragma once
/// Records of the parts of a few ranks, verified and grouped by tensor. One thread fills a batch
/// while another one adds the batch before to the step.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/base/aligned_bytes.h"
#include "kv/base/error.h"
#include "kv/base/key.h"
#include "kv/base/step_records.h"
#include "kv/commit/internal/collected_records.h"
#include "kv/commit/internal/part_file.h"
#include "kv/commit/internal/stored_record.h"

namespace cairn::kv::internal {

/// Memory: the records. Threads: one at a time.
class RankBatch {
 public:
  /// Chunks of one tensor, in the order in which they were added.
  struct Chunks {
    std::string name;  // the FQN and NUL
    size_t dimensions = 0;
    std::vector<uint32_t> ranks;
    std::vector<uint64_t> length_bytes;
    std::vector<uint64_t> boxes;
    std::vector<size_t> records;        // indices of words_
    CollectedRecords::Chunks in_block;  // from Finish on

    RankChunks View() const;
  };
  struct Shared {
    uint32_t rank = 0;
    std::string digest;
  };
  struct Segment {
    std::string key;
    std::vector<std::byte> record;
  };
  /// The sums of the step records of the parts.
  struct Counts {
    uint64_t chunks = 0;
    uint64_t reused_chunks = 0;
    uint64_t written_bytes = 0;
  };

  /// A batch of parts of this attempt, whose segments have this epoch.
  RankBatch(std::string attempt, uint32_t epoch) : attempt_(std::move(attempt)), epoch_(epoch) {}

  /// Begins the part of `rank`. The records that follow are in this part.
  void BeginPart(uint32_t rank);
  /// Verifies and adds a record, whose value need not be aligned. kDataLoss, kUnimplemented: the
  /// record is damaged, newer than this build reads, or not one of a part. After an error the batch
  /// can only be destroyed.
  Result<void> Add(const RecordView& record);
  /// Moves the records of the chunks to a block of memory, where those of one tensor follow each
  /// other. Nothing can be added until Clear.
  void Finish();
  /// Removes the records, and keeps some of the memory for those that follow. What was begun
  /// remains so.
  void Clear();

  /// Length of the records of chunks.
  uint64_t size_bytes() const { return words_.size() * sizeof(uint64_t); }
  /// Some may be of no chunks.
  const std::deque<Chunks>& chunks() const { return chunks_; }
  /// Returns the block that Finish filled, whose length is size_bytes(). Call once.
  std::unique_ptr<uint64_t[]> TakeBlock() { return std::move(block_); }
  const std::vector<Shared>& shared() const { return shared_; }
  const std::vector<Segment>& segments() const { return segments_; }
  const Counts& counts() const { return counts_; }
  /// Segment ids, and lengths that the chunks use of them. A segment may have several entries.
  std::span<const std::pair<uint64_t, uint64_t>> uses() const { return uses_; }

 private:
  Result<void> AddChunk(std::string_view key, std::span<const std::byte> value);
  Chunks& ChunksOf(std::string_view name, size_t dimensions);
  StoredRecord Store(std::string_view key, std::span<const std::byte> value);
  Result<void> AddSegment(std::string_view key, std::span<const std::byte> value);

  const std::string attempt_;
  const uint32_t epoch_;
  uint32_t rank_ = 0;
  uint64_t part_segments_ = 0;  // in the part that was begun

  AlignedBytes aligned_;
  std::vector<uint64_t> words_;  // the records of the chunks, in the order of the parts
  std::unique_ptr<uint64_t[]> block_;
  std::deque<Chunks> chunks_;
  std::unordered_map<std::string_view, size_t> by_name_;  // in chunks_, the last one of this name
  size_t last_chunks_ = 0;                                // in chunks_
  std::vector<Shared> shared_;
  std::vector<Segment> segments_;
  Counts counts_;
  std::vector<std::pair<uint64_t, uint64_t>> uses_;
};

}  // namespace cairn::kv::internal
