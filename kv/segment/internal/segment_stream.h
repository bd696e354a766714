#pragma once
/// The segments that one attempt writes, one after another: which segment a payload goes to, when a
/// segment is sealed, and the records about its payload.

#include <cstdint>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/base/extents.h"
#include "kv/base/key.h"
#include "kv/base/options.h"
#include "kv/base/payload.h"
#include "kv/base/step_info.h"
#include "kv/io/block_pool.h"
#include "kv/io/internal/block_io.h"
#include "kv/io/io_queue.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/segment/internal/segment_output.h"
#include "kv/segment/internal/segment_writer.h"
#include "kv/storage/storage.h"
#include "kv/table/internal/record_run.h"

namespace cairn::kv::internal {

/// Returns the id of the n-th segment that `rank` writes in `attempt`, whose session has `epoch`:
/// the first 96 bits of the XXH3-128 of their names. No other attempt of any store has this id.
ObjectId SegmentIdOf(uint32_t epoch, const std::string& attempt, uint32_t rank, uint64_t n);

/// Ownership: owns the segments until they are sealed. The destructor waits for all writes and
/// removes a segment that is not sealed. Threads: one at a time.
class SegmentStream {
 public:
  struct Options {
    std::shared_ptr<Storage> storage;
    Uuid store_uuid{};
    uint32_t epoch = 0;
    uint64_t step = 0;
    uint32_t rank = 0;
    int64_t created_unix_ns = 0;
    std::string attempt;
    IoOptions io;
    BlockPool* pool = nullptr;       // outlives the stream
    FileQueues* queues = nullptr;    // outlives the stream
    FreeSpace free_space = nullptr;  // may be called by a thread that seals a segment
  };
  /// `on_record` is called with each record of a chunk or a segment, when the footer of its segment
  /// is written.
  SegmentStream(Options options, TableRecordCallback on_record);
  ~SegmentStream();
  SegmentStream(const SegmentStream&) = delete;
  SegmentStream& operator=(const SegmentStream&) = delete;

  /// See StepWriter::UseBlocks. Requires that it was not called before and that `blocks` is not
  /// null.
  Result<void> UseBlocks(std::shared_ptr<BlockPool> blocks);

  /// See StepWriter::Append. page_digests_offset_bytes of the extent is a position after the page
  /// digests of the segment begin, which AddChunk replaces when the segment is sealed.
  struct Appended {
    Extent extent;
    Digest digest;
  };
  Result<Appended> Append(const Payload& payload, SegmentAlignment alignment,
                          std::span<const uint64_t> page_digests, uint8_t page_bits = kPageBits);
  /// See StepWriter::AppendPages.
  Result<std::vector<Extent>> AppendPages(const Payload& payload, std::span<const PageRange> ranges,
                                          std::span<const uint64_t> page_digests,
                                          uint8_t page_bits = kPageBits);

  /// Sets the tensor of the chunks that follow. Its record is added to the footer of each of their
  /// segments. Returns the record, which is valid until the next call.
  TableRecord SetTensor(std::string_view key, std::span<const std::byte> record);
  /// Adds the record of a chunk that was just appended, completely, in part or as a delta. Requires
  /// that the current segment has one of its extents.
  void AddChunk(std::string_view key, const ChunkEntry& entry);

  /// Waits until the payload that was appended is not needed any more.
  Result<void> Drain();
  /// Adds the records of everything that was appended, while the last bytes are being written. Only
  /// Seal may follow.
  Result<void> Finish();
  /// Begins to seal a segment of many chunks in the background. Requires Finish; Seal follows.
  Result<void> BeginSeal();
  /// Seals the current segment, if there is one, and waits for segments that are being sealed.
  Result<void> Seal();
  /// Waits for all writes and removes the current segment. Nothing can be appended after this.
  void Abandon();

  /// Returns whether payload may be far ahead of the disk, so that Seal takes long.
  bool runs_ahead() const { return blocks_ != nullptr; }
  /// Returns whether payload is appended to this segment now.
  bool IsCurrent(uint64_t segment_id) const {
    return segment_ != nullptr && segment_id == segment_id_;
  }
  /// Id of the current segment, or of the last one.
  uint64_t segment_id() const { return segment_id_; }
  /// The sealed segments, in the order in which they were begun.
  const std::vector<SegmentInfo>& sealed() const { return sealed_; }
  /// Payload appended so far, without padding.
  uint64_t written_bytes() const { return written_bytes_; }

 private:
  /// A segment that is being completed in the background.
  struct Closing {
    std::unique_ptr<IoQueue> queue;
    std::unique_ptr<SegmentWriter> segment;          // uses `queue`
    std::shared_future<Result<SegmentInfo>> sealed;  // shared with the thread of the next segment
  };

  Result<void> StartSegment();
  /// Ensures that segment_ has room for `length_bytes`.
  Result<void> MakeRoom(uint64_t length_bytes);
  /// Writes the footer of the current segment, and seals it or begins to seal it in the background.
  Result<void> CloseSegment();
  Result<void> CompleteInBackground();
  /// Takes note of the segments that have been sealed in the background, or waits for all.
  Result<void> ReapClosed(bool waits);

  const Options options_;
  const TableRecordCallback on_record_;
  std::shared_ptr<BlockPool> blocks_;  // null: options_.pool; shared with the payloads' owner
  std::unique_ptr<IoQueue> queue_;
  std::unique_ptr<SegmentWriter> segment_;  // uses queue_
  std::list<Closing> closing_;              // in the order in which they were begun
  uint64_t segment_id_ = 0;
  uint64_t segment_count_ = 0;
  RecordList footer_;       // records for segment_
  ChunkEncoder encoder_;    // for footer_
  uint64_t key_bytes_ = 0;  // sum over the chunks in segment_
  RecordList tensor_record_;
  std::optional<TableRecord> tensor_;  // the record of SetTensor, in tensor_record_
  bool is_tensor_in_footer_ = false;
  bool is_finished_ = false;  // segment_ has its footer
  std::vector<SegmentInfo> sealed_;
  uint64_t written_bytes_ = 0;
};

}  // namespace cairn::kv::internal
