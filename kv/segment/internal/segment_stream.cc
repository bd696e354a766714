// Rotates segments, and seals them in the background.

#include "kv/segment/internal/segment_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/segment/internal/segment_files.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

/// The table of fewer chunks takes as long as a thread to begin.
constexpr uint64_t kManyChunks = 4096;
/// A segment is sealed when the keys of its chunks, of which each may have 64 KiB, have this
/// length: a footer of 2 GiB cannot be encoded.
constexpr uint64_t kMaxKeyBytes = 64 << 20;

}  // namespace

ObjectId SegmentIdOf(uint32_t epoch, const std::string& attempt, uint32_t rank, uint64_t n) {
  const Digest digest = Checksum128(AsBytes(fmt::format("{}/{}/{}", attempt, rank, n)));
  return {.epoch = epoch, .id = digest.hi, .id_tail = static_cast<uint32_t>(digest.lo >> 32)};
}

SegmentStream::SegmentStream(Options options, TableRecordCallback on_record)
    : options_(std::move(options)), on_record_(std::move(on_record)) {}

SegmentStream::~SegmentStream() {
  CleanUp([&] { Abandon(); });
  options_.queues->Give(std::move(queue_));
}

void SegmentStream::Abandon() {
  segment_.reset();  // waits for its writes and removes the file
  for (Closing& closing : closing_) {
    const Result<SegmentInfo> info = closing.sealed.get();
    if (info) sealed_.push_back(*info);
    closing.segment.reset();
  }
  closing_.clear();
}

Result<void> SegmentStream::StartSegment() {
  if (queue_ == nullptr) {
    CAIRN_TRY_ASSIGN(
        queue_, TakeSegmentQueue(*options_.storage, *options_.queues, options_.io.queue_depth));
  }
  const ObjectId id =
      SegmentIdOf(options_.epoch, options_.attempt, options_.rank, segment_count_++);
  segment_id_ = id.id;
  const SegmentHeader header{.store_uuid = options_.store_uuid,
                             .segment_id = segment_id_,
                             .step = options_.step,
                             .rank = options_.rank,
                             .epoch = options_.epoch,
                             .created_unix_ns = options_.created_unix_ns,
                             .id_tail = id.id_tail};
  BlockPool* const pool = blocks_ != nullptr ? blocks_.get() : options_.pool;
  CAIRN_TRY_ASSIGN(
      SegmentOutput output,
      SegmentOutput::Create(*options_.storage, ObjectName(ObjectKind::kSegment, id),
                            options_.io.direct, pool->block_bytes(), options_.free_space));
  CAIRN_TRY_ASSIGN(segment_, SegmentWriter::Create(std::move(output), header, pool, queue_.get()));
  return {};
}

Result<void> SegmentStream::MakeRoom(uint64_t length_bytes) {
  CAIRN_TRY(ReapClosed(/*waits=*/false));
  if (segment_ != nullptr && (segment_->IsFull(length_bytes) || key_bytes_ >= kMaxKeyBytes)) {
    CAIRN_TRY(CloseSegment());
  }
  return segment_ == nullptr ? StartSegment() : Result<void>();
}

Result<void> SegmentStream::UseBlocks(std::shared_ptr<BlockPool> blocks) {
  CAIRN_CHECK(blocks_ == nullptr && blocks != nullptr);
  CAIRN_TRY(Seal());
  blocks_ = std::move(blocks);
  return {};
}

Result<SegmentStream::Appended> SegmentStream::Append(const Payload& payload,
                                                      SegmentAlignment alignment,
                                                      std::span<const uint64_t> page_digests,
                                                      uint8_t page_bits) {
  const uint64_t length_bytes = payload.length_bytes();
  CAIRN_TRY(MakeRoom(length_bytes));
  CAIRN_TRY_ASSIGN(const auto appended,
                   segment_->Append(payload, 0, length_bytes, alignment, page_digests, page_bits));
  segment_->CountChunk();
  written_bytes_ += length_bytes;
  return Appended{.extent = Extent{.segment_id = segment_id_,
                                   .offset_bytes = appended.offset_bytes,
                                   .length_bytes = length_bytes,
                                   .page_digests_offset_bytes = appended.page_digests_at_bytes,
                                   .page_bits = page_bits},
                  .digest = appended.digest};
}

Result<std::vector<Extent>> SegmentStream::AppendPages(const Payload& payload,
                                                       std::span<const PageRange> ranges,
                                                       std::span<const uint64_t> page_digests,
                                                       uint8_t page_bits) {
  const uint64_t length_bytes = payload.length_bytes();
  const uint64_t page_bytes = uint64_t{1} << page_bits;
  CAIRN_CHECK(page_digests.size() == PageCount(length_bytes, page_bytes));
  const auto bytes_of = [&](const PageRange& range) {
    CAIRN_CHECK(range.begin_page < range.end_page && range.end_page <= page_digests.size());
    return std::min(range.end_page * page_bytes, length_bytes) - range.begin_page * page_bytes;
  };
  uint64_t total_bytes = 0;
  for (const PageRange& range : ranges) total_bytes += bytes_of(range);
  CAIRN_TRY(MakeRoom(total_bytes));
  std::vector<Extent> extents;
  extents.reserve(ranges.size());
  for (const PageRange& range : ranges) {
    CAIRN_TRY_ASSIGN(
        const auto appended,
        segment_->Append(
            payload, range.begin_page * page_bytes, bytes_of(range), SegmentAlignment::k4096,
            page_digests.subspan(range.begin_page, range.end_page - range.begin_page), page_bits));
    extents.push_back({.segment_id = segment_id_,
                       .offset_bytes = appended.offset_bytes,
                       .length_bytes = bytes_of(range),
                       .page_digests_offset_bytes = appended.page_digests_at_bytes,
                       .page_bits = page_bits});
  }
  segment_->CountChunk();
  written_bytes_ += total_bytes;
  return extents;
}

TableRecord SegmentStream::SetTensor(std::string_view key, std::span<const std::byte> record) {
  is_tensor_in_footer_ = false;
  tensor_record_.Clear();
  tensor_ = tensor_record_.Add(Column::kTensors, key, record);
  return *tensor_;
}

void SegmentStream::AddChunk(std::string_view key, const ChunkEntry& entry) {
  bool is_here = false;
  entry.extents.ForEach([&](const Extent& extent) { is_here |= extent.segment_id == segment_id_; });
  CAIRN_CHECK(segment_ != nullptr && is_here);
  if (!is_tensor_in_footer_ && tensor_ && key.starts_with(tensor_->key.substr(1))) {
    is_tensor_in_footer_ = true;
    footer_.Add(*tensor_);
  }
  key_bytes_ += key.size();
  footer_.Add(Column::kChunks, key, encoder_.Encode(entry));
}

Result<void> SegmentStream::Finish() {
  if (segment_ == nullptr || is_finished_) return {};
  const uint64_t page_digests_offset_bytes = segment_->page_digests_offset_bytes();
  CAIRN_TRY(footer_.ForEach([&](uint64_t* words) -> Result<void> {
    const TableRecord record = RecordAt(words);
    if (record.column() != Column::kChunks) return {};
    MovePageDigests(MutableValueAt(words), segment_id_, page_digests_offset_bytes);
    return on_record_(record);
  }));
  CAIRN_TRY(segment_->Finish(options_.attempt, footer_));
  footer_.Clear();
  is_tensor_in_footer_ = false;  // its chunks may continue in the next segment
  key_bytes_ = 0;
  is_finished_ = true;
  return on_record_({.key = TableKey(Column::kSegments, NumberKey(segment_id_)),
                     .value = EncodeSegment(segment_->info())});
}

Result<void> SegmentStream::CloseSegment() {
  if (segment_ == nullptr) return {};
  CAIRN_TRY(Finish());
  is_finished_ = false;
  if (blocks_ != nullptr) return CompleteInBackground();
  CAIRN_TRY(segment_->Complete());
  sealed_.push_back(segment_->info());
  segment_.reset();
  return {};
}

// Copies may be far ahead of the disk, so this does not wait until the segment is written. Segments
// complete in the order in which they were begun.
Result<void> SegmentStream::CompleteInBackground() {
  std::shared_future<Result<SegmentInfo>> before;
  if (!closing_.empty()) before = closing_.back().sealed;
  std::list<Closing> next(1);
  Closing& closing = next.front();
  closing.queue = std::move(queue_);
  closing.segment = std::move(segment_);
  const auto complete = [before, segment = closing.segment.get()] {
    if (before.valid()) before.wait();
    return CatchExhaustion("sealing a segment", [&]() -> Result<SegmentInfo> {
      CAIRN_TRY(segment->Complete());
      return segment->info();
    });
  };
  closing.sealed = std::async(std::launch::async | std::launch::deferred, complete).share();
  // Deferred: the system has no more threads. The next segment may need the blocks.
  const auto status = closing.sealed.wait_for(std::chrono::seconds(0));
  if (status == std::future_status::deferred) closing.sealed.wait();
  closing_.splice(closing_.end(), next);
  return {};
}

Result<void> SegmentStream::ReapClosed(bool waits) {
  while (!closing_.empty()) {
    const auto& sealed = closing_.front().sealed;
    if (!waits && sealed.wait_for(std::chrono::seconds(0)) != std::future_status::ready) break;
    CAIRN_TRY_ASSIGN(SegmentInfo info, closing_.front().sealed.get());
    closing_.front().segment.reset();
    options_.queues->Give(std::move(closing_.front().queue));
    closing_.pop_front();
    sealed_.push_back(std::move(info));
  }
  return {};
}

Result<void> SegmentStream::Drain() {
  for (const Closing& closing : closing_) closing.sealed.wait();  // even if one fails
  CAIRN_TRY(ReapClosed(/*waits=*/true));
  return segment_ != nullptr ? segment_->Drain() : Result<void>();
}

Result<void> SegmentStream::BeginSeal() {
  if (segment_ == nullptr || segment_->info().chunk_count < kManyChunks) return {};
  is_finished_ = false;
  return CompleteInBackground();
}

Result<void> SegmentStream::Seal() {
  CAIRN_TRY(CloseSegment());
  return ReapClosed(/*waits=*/true);
}

}  // namespace cairn::kv::internal
