#pragma once
/// Writes one segment: payload through the block pool, then page digests, footer and trailer.

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/base/digest.h"
#include "kv/base/div.h"
#include "kv/base/payload.h"
#include "kv/base/step_info.h"
#include "kv/io/block_pool.h"
#include "kv/io/io_queue.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/segment/internal/segment_output.h"

namespace cairn::kv::internal {

/// Payload is copied to a block, digested while it is in the cache, and written when the block is
/// full; the number of blocks in flight is the depth of the queue. Large payload is written from
/// its own memory, or by its device, if the output is a file and its alignment allows that.
/// Threads: one.
class SegmentWriter {
 public:
  /// Writes the header to `output`, which is empty. `pool` and `queue` must outlive the writer.
  /// Requires that the queue is idle; nothing else may use it until Complete or the destructor
  /// returns. An output without a file has the blocks of `pool`.
  static Result<std::unique_ptr<SegmentWriter>> Create(SegmentOutput output,
                                                       const SegmentHeader& header, BlockPool* pool,
                                                       IoQueue* queue);
  /// Waits for writes in flight. Discards the output unless Complete returned success.
  ~SegmentWriter();

  /// Appends bytes [begin_bytes, begin_bytes + length_bytes) of a payload. `page_digests` has one
  /// digest per page of this range, each of 2^page_bits bytes; if it is empty, the digests are
  /// computed. Requires that `begin_bytes` begins a page, and `page_digests` if the payload has a
  /// CopyQueue, which must outlive the writer. `page_digests_at_bytes` of the result is the
  /// position of its first page digest after page_digests_offset_bytes.
  struct Appended {
    uint64_t offset_bytes = 0;
    uint64_t page_digests_at_bytes = 0;
    Digest digest;
  };
  Result<Appended> Append(const Payload& payload, uint64_t begin_bytes, uint64_t length_bytes,
                          SegmentAlignment alignment, std::span<const uint64_t> page_digests,
                          uint8_t page_bits);

  /// Counts one more chunk whose payload, or some pages of it, was appended. Separate from Append,
  /// because a chunk may need several appends.
  void CountChunk() { ++chunk_count_; }

  /// Returns whether a payload of this length belongs in the next segment.
  bool IsFull(uint64_t length_bytes) const;
  uint64_t payload_bytes() const { return payload_bytes_; }
  /// Offset of the page digests if no more payload is appended.
  uint64_t page_digests_offset_bytes() const { return RoundUp(position_, kDirectAlignBytes); }

  /// Writes the blocks that have been filled and waits for these writes and for those from the
  /// caller's memory. The last block, which need not be full, is written to a file, and is kept as
  /// a copy for an upload, whose parts have one length. After an error all blocks except for the
  /// current one are back in the pool.
  Result<void> Drain();

  /// Appends the page digests, the footer and the trailer. Nothing can be appended after this.
  Result<void> Finish(const std::string& attempt, const RecordList& records);
  /// Waits for all writes, and finishes the output; the caller syncs the directory of a file.
  /// Requires Finish.
  /// After an error all blocks are back in the pool. May run on another thread than the calls
  /// before it, concurrently with the next writer if that has another IoQueue.
  Result<void> Complete();
  /// Describes the complete segment. Requires Finish.
  SegmentInfo info() const;

 private:
  SegmentWriter(SegmentOutput output, const SegmentHeader& header, BlockPool* pool, IoQueue* queue);
  /// A block whose copies are not complete, or which waits for room in the queue.
  struct WaitingBlock {
    std::byte* data = nullptr;
    uint64_t length_bytes = 0;
    uint64_t offset_bytes = 0;    // in the segment
    CopyQueue* copies = nullptr;  // null: the bytes are in the block
    uint64_t copied_mark = 0;     // position in `copies`
  };
  /// Fills the next `length_bytes` of the segment, block by block, with `fill(done_bytes, target)`.
  template <typename Fill>
  Result<void> FillBlocks(uint64_t length_bytes, const Fill& fill);
  Result<void> Align(SegmentAlignment alignment);
  Result<void> Put(std::span<const std::byte> bytes);
  Result<void> PutBorrowed(std::span<const std::byte> memory);
  /// Copies a page, which begins at `begin_bytes` of the payload, to the next bytes of the segment,
  /// and returns the digest of the copy.
  Result<uint64_t> PutPage(const Payload& payload, uint64_t begin_bytes, uint64_t length_bytes);
  /// Copies and digests pages. `page_digests` is as for Append: they may have changed since.
  Result<void> PutPages(const Payload& payload, uint64_t begin_bytes, uint64_t length_bytes,
                        std::span<const uint64_t> page_digests, uint64_t page_bytes);
  /// Appends a payload whose copies are complete when CopyTo returns.
  Result<void> PutFromHost(const Payload& payload, uint64_t begin_bytes, uint64_t length_bytes,
                           std::span<const uint64_t> page_digests, uint64_t page_bytes);
  /// Appends a payload that has a CopyQueue, through blocks.
  Result<void> PutCopies(const Payload& payload, uint64_t begin_bytes, uint64_t length_bytes);
  bool CanBorrow(std::span<const std::byte> memory);
  Result<void> PutZerosTo(uint64_t position);
  Result<void> SubmitBlock();
  /// Submits the waiting blocks whose copies are complete, while the queue has room.
  Result<void> SubmitCopied();
  /// Waits for the copies of the oldest waiting block, and submits it.
  Result<void> SubmitOldest();
  Result<void> WriteWaiting();
  /// Copies the current block, which is not full, to tail_, and returns it to the pool.
  Result<void> KeepTail();
  void ReturnWaitingBlocks();
  Result<void> TakeBlock();
  Result<void> AwaitOne();
  void Reserve(uint64_t end_bytes);

  SegmentOutput output_;
  const SegmentHeader header_;
  BlockPool* const pool_;
  IoQueue* const queue_;

  uint64_t position_ = 0;        // next byte of the segment
  uint64_t reserved_bytes_ = 0;  // allocated ahead, so that writes do not extend the file
  std::byte* block_ = nullptr;   // being filled; contains [position_ - fill_bytes_, position_)
  uint64_t fill_bytes_ = 0;
  std::vector<std::byte> tail_;        // if block_ is null: the beginning of the next block
  CopyQueue* block_copies_ = nullptr;  // null: the bytes of block_ are complete
  // Copies may be ahead of the disk by as many blocks as the pool has.
  bool copies_run_ahead_ = false;
  std::deque<WaitingBlock> waiting_;  // in the order of their offsets
  uint64_t payload_bytes_ = 0;
  uint64_t chunk_count_ = 0;
  std::vector<uint64_t> page_digests_;
  std::vector<std::byte> scratch_;
  SegmentTrailer trailer_;  // set by Finish
};

}  // namespace cairn::kv::internal
