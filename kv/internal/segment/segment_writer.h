#pragma once
/// Writes one segment file: payload through the block pool, then leaves, footer and trailer.

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/block_filler.h"
#include "kv/block_pool.h"
#include "kv/digest.h"
#include "kv/internal/io/block_io.h"
#include "kv/internal/io/file.h"
#include "kv/internal/segment/segment_format.h"
#include "kv/step_info.h"
#include "kv/step_writer.h"

namespace cairn::kv::internal {

/// Payload is copied into a block, digested while it is hot, and written when the block is full; as
/// many blocks are in flight as the queue is deep. Large payload that lies in memory as it will lie
/// in the file, page by page, is written from where it is. Threads: one.
class SegmentWriter {
 public:
  /// Makes `<directory>/<name>`. `pool`, `queue` and `filler` (or null) must outlive the writer;
  /// the queue must be idle and is used by nobody else until Seal or the destructor returns.
  static Result<std::unique_ptr<SegmentWriter>> Create(const std::string& directory,
                                                       const SegmentHeader& header, bool direct,
                                                       BlockPool* pool, IoQueue* queue,
                                                       BlockFiller* filler = nullptr);
  /// Waits for writes in flight. Unlinks the file unless Seal returned success.
  ~SegmentWriter();

  /// Appends a payload; see StepWriter::Append. `first_page_digest` is the index of its first page digest.
  struct Appended {
    uint64_t offset_bytes = 0;
    uint64_t first_page_digest = 0;
    Digest digest;
  };
  Result<Appended> Append(uint64_t length_bytes, StepWriter::Placement placement,
                          const StepWriter::PageSource& pages, std::span<const uint64_t> page_digests,
                          std::span<const std::byte> memory);

  /// Appends a payload that the filler brings; see StepWriter::AppendFilled.
  Result<Appended> AppendFilled(uint64_t length_bytes, StepWriter::Placement placement,
                                std::span<const uint64_t> page_digests, const StepWriter::Fill& fill);

  /// One more chunk has its payload here, or some pages of it; a chunk may take several appends.
  void CountChunk() { ++chunk_count_; }

  /// True if a payload of this length should go into a next segment.
  bool IsFull(uint64_t length_bytes) const;
  uint64_t payload_bytes() const { return payload_bytes_; }
  /// Where the page digests will stand once no more payload comes.
  uint64_t page_digests_offset_bytes() const { return RoundUp(position_, kDirectAlignBytes); }

  /// Waits for all blocks that are full, and for writes from the caller's memory; after an error
  /// all but the one at hand are given back.
  Result<void> Drain();

  /// Writes the rest and syncs the file: Finish and Complete. The directory is the caller's to
  /// sync.
  Result<SegmentInfo> Seal(const std::string& attempt, std::span<const FooterEntry> entries);
  /// Puts the rest into blocks. Nothing can be appended any more.
  Result<void> Finish(const std::string& attempt, std::span<const FooterEntry> entries);
  /// Waits for all that is to be written, and syncs; after an error all blocks are given back. May
  /// run on another thread than what came before, beside a next writer that has the same pool and
  /// filler but a queue of its own.
  Result<SegmentInfo> Complete();

 private:
  SegmentWriter(File file, std::string name, const SegmentHeader& header, BlockPool* pool,
                IoQueue* queue, BlockFiller* filler);
  /// A block whose bytes are on their way, or which waits for room in the queue.
  struct WaitingBlock {
    std::byte* data = nullptr;
    uint64_t length_bytes = 0;
    uint64_t offset_bytes = 0;       // in the file
    std::optional<uint64_t> filled;  // the filler's mark; nothing: the bytes are there
  };
  /// Lets `fill(done_bytes, target)` fill the next `length_bytes` of the file, block by block.
  template <typename Fill>
  Result<void> FillBlocks(uint64_t length_bytes, const Fill& fill);
  Result<void> Place(StepWriter::Placement placement);
  Result<void> Put(std::span<const std::byte> bytes);
  Result<void> PutBorrowed(std::span<const std::byte> memory);
  /// Bytes [begin_bytes, end_bytes) of a payload, through blocks.
  Result<void> PutFilled(uint64_t begin_bytes, uint64_t end_bytes, const StepWriter::Fill& fill);
  /// Begins to write what it can of a payload without blocks; returns how far that is. In front of
  /// it is what fills no page of the file, through a block.
  Result<uint64_t> PutWithoutBlocks(uint64_t length_bytes, const StepWriter::Fill& fill);
  bool CanBorrow(std::span<const std::byte> memory) const;
  Result<void> PutZerosTo(uint64_t position);
  Result<void> SubmitBlock();
  Result<void> Submit(const WaitingBlock& block);
  /// Submits the blocks that are filled, as far as the queue has room; or the oldest, waiting.
  Result<void> SubmitFilled();
  Result<void> SubmitOldest();
  Result<void> WriteWaiting();
  void GiveWaitingBack();
  Result<void> TakeBlock();
  Result<void> AwaitOne();
  void Reserve(uint64_t end_bytes);

  File file_;
  const std::string name_;
  const SegmentHeader header_;
  BlockPool* const pool_;
  IoQueue* const queue_;
  BlockFiller* const filler_;  // may be null
  bool filler_writes_ = false;  // it has opened the file, and must close it

  uint64_t position_ = 0;        // next byte of the file
  uint64_t reserved_bytes_ = 0;  // allocated ahead, so that writes do not extend the file
  std::byte* block_ = nullptr;   // being filled; holds [position_ - fill_bytes_, position_)
  uint64_t fill_bytes_ = 0;
  bool block_is_filled_later_ = false;  // block_ has parts that the filler brings
  std::deque<WaitingBlock> waiting_;    // in the order of the file
  uint64_t payload_bytes_ = 0;
  uint64_t chunk_count_ = 0;
  std::vector<uint64_t> page_digests_;
  std::vector<std::byte> scratch_;
  SegmentTrailer trailer_;  // once finished
  bool sealed_ = false;
};

}  // namespace cairn::kv::internal
