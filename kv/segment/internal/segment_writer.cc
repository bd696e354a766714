// Writing of segments.

#include "kv/segment/internal/segment_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kv/io/internal/fault_point.h"
#include "kv/root/internal/kv_records.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kFirstReserveBlocks = 32;
constexpr uint64_t kMaxReserveBytes = 1ull << 30;
// Smaller payload is copied: a borrowed write ends the current block, which may be nearly empty.
constexpr uint64_t kMinBorrowedBytes = 256 << 10;

// Tags of requests: the owner of the memory.
constexpr uint64_t kPoolBlock = 0;
constexpr uint64_t kBorrowed = 1;

}  // namespace

SegmentWriter::SegmentWriter(SegmentOutput output, const SegmentHeader& header, BlockPool* pool,
                             IoQueue* queue)
    : output_(std::move(output)), header_(header), pool_(pool), queue_(queue) {}

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(SegmentOutput output,
                                                             const SegmentHeader& header,
                                                             BlockPool* pool, IoQueue* queue) {
  auto writer =
      std::unique_ptr<SegmentWriter>(new SegmentWriter(std::move(output), header, pool, queue));
  std::vector<std::byte> bytes(kSegmentHeaderBytes);
  EncodeSegmentHeader(header, std::span<std::byte, kSegmentHeaderBytes>(bytes));
  CAIRN_TRY(writer->Put(bytes));
  return writer;
}

SegmentWriter::~SegmentWriter() {
  // Writes and copies are still in progress only after an error. A block returns to the pool only
  // when no device can write to it any more.
  if (block_copies_ != nullptr) block_copies_->Cancel();
  ReturnWaitingBlocks();
  if (block_ != nullptr) pool_->Give(block_);
}

bool SegmentWriter::IsFull(uint64_t length_bytes) const {
  return chunk_count_ > 0 && (chunk_count_ >= kMaxSegmentEntries ||
                              payload_bytes_ + length_bytes > kMaxSegmentPayloadBytes);
}

void SegmentWriter::Reserve(uint64_t end_bytes) {
  const File* const file = output_.file();
  if (file == nullptr || end_bytes <= reserved_bytes_) return;
  // ext4 and xfs serialise writes that extend a file; allocating space ahead avoids that. If the
  // file system cannot do that, or has little space left, writes extend the file.
  const uint64_t block_bytes = pool_->block_bytes();
  const uint64_t first = std::min(kFirstReserveBlocks * block_bytes, kMaxReserveBytes);
  const uint64_t ahead = std::clamp(end_bytes, first, kMaxReserveBytes);
  const uint64_t wanted = RoundUp(end_bytes + block_bytes, ahead);
  const uint64_t begin = std::max(reserved_bytes_, end_bytes);
  reserved_bytes_ = wanted;
  (void)::fallocate(file->fd(), 0, static_cast<off_t>(begin), static_cast<off_t>(wanted - begin));
}

Result<void> SegmentWriter::AwaitOne() {
  return output_.AwaitWrite(*queue_, [this](const IoRequest& request) {
    if (request.tag == kPoolBlock) pool_->Give(request.data);
  });
}

Result<void> SegmentWriter::TakeBlock() {
  while (block_ == nullptr) {
    CAIRN_TRY(SubmitCopied());
    const bool has_room = queue_->in_flight() < queue_->depth();
    if (has_room || copies_run_ahead_) block_ = pool_->TryTake();
    if (block_ != nullptr) break;
    if (has_room && !waiting_.empty()) {
      CAIRN_TRY(SubmitOldest());
    } else if (queue_->in_flight() > 0) {
      CAIRN_TRY(AwaitOne());
    } else {
      CAIRN_TRY_ASSIGN(block_, pool_->Take());
    }
  }
  std::ranges::copy(tail_, block_);
  fill_bytes_ = tail_.size();
  tail_.clear();
  return {};
}

Result<void> SegmentWriter::SubmitBlock() {
  WaitingBlock block{
      .data = block_, .length_bytes = fill_bytes_, .offset_bytes = position_ - fill_bytes_};
  if (block_copies_ != nullptr) {
    block.copies = block_copies_;
    CAIRN_TRY_ASSIGN(block.copied_mark, block_copies_->Flush());
  }
  waiting_.push_back(block);
  block_copies_ = nullptr;
  block_ = nullptr;
  fill_bytes_ = 0;
  return SubmitCopied();
}

Result<void> SegmentWriter::SubmitCopied() {
  if (waiting_.empty()) return {};
  while (queue_->HasCompletion()) CAIRN_TRY(AwaitOne());
  while (!waiting_.empty() && queue_->in_flight() < queue_->depth()) {
    const WaitingBlock& oldest = waiting_.front();
    if (oldest.copies != nullptr) {
      CAIRN_TRY_ASSIGN(const bool copied, oldest.copies->HasReached(oldest.copied_mark));
      if (!copied) return {};
    }
    CAIRN_TRY(SubmitOldest());
  }
  return {};
}

Result<void> SegmentWriter::SubmitOldest() {
  const WaitingBlock& block = waiting_.front();
  if (block.copies != nullptr) CAIRN_TRY(block.copies->Await(block.copied_mark));
  // A block that is not full is the last one, so no space is needed after it.
  if (block.length_bytes == pool_->block_bytes()) Reserve(block.offset_bytes + block.length_bytes);
  CAIRN_TRY(queue_->Submit(
      output_.Write(block.data, block.length_bytes, block.offset_bytes, kPoolBlock)));
  waiting_.pop_front();
  return {};
}

template <typename Fill>
Result<void> SegmentWriter::FillBlocks(uint64_t length_bytes, const Fill& fill) {
  uint64_t done_bytes = 0;
  while (done_bytes < length_bytes) {
    if (block_ == nullptr) CAIRN_TRY(TakeBlock());
    const uint64_t part = std::min(length_bytes - done_bytes, pool_->block_bytes() - fill_bytes_);
    CAIRN_TRY(fill(done_bytes, std::span(block_ + fill_bytes_, part)));
    fill_bytes_ += part;
    position_ += part;
    done_bytes += part;
    if (fill_bytes_ == pool_->block_bytes()) CAIRN_TRY(SubmitBlock());
  }
  return {};
}

Result<void> SegmentWriter::Put(std::span<const std::byte> bytes) {
  return FillBlocks(bytes.size(), [&](uint64_t done, std::span<std::byte> target) -> Result<void> {
    std::memcpy(target.data(), bytes.data() + done, target.size());
    return {};
  });
}

bool SegmentWriter::CanBorrow(std::span<const std::byte> memory) {
  const File* const file = output_.file();
  if (file == nullptr) return false;
  const uint64_t head = RoundUp(position_, kDirectAlignBytes) - position_;
  return memory.size() >= kMinBorrowedBytes &&
         (reinterpret_cast<uintptr_t>(memory.data()) + head) % file->memory_align_bytes() == 0;
}

Result<void> SegmentWriter::PutBorrowed(std::span<const std::byte> memory) {
  // The bytes before the first and after the last complete 4 KiB block of the file are copied.
  const uint64_t head = RoundUp(position_, kDirectAlignBytes) - position_;
  CAIRN_TRY(Put(memory.first(head)));
  memory = memory.subspan(head);
  if (fill_bytes_ > 0) CAIRN_TRY(SubmitBlock());
  while (memory.size() >= kDirectAlignBytes) {
    while (queue_->in_flight() == queue_->depth()) CAIRN_TRY(AwaitOne());
    const uint64_t part =
        std::min(pool_->block_bytes(), RoundDown(memory.size(), kDirectAlignBytes));
    Reserve(position_ + part);
    auto* const data = const_cast<std::byte*>(memory.data());  // only read
    CAIRN_TRY(queue_->Submit(output_.Write(data, part, position_, kBorrowed)));
    position_ += part;
    memory = memory.subspan(part);
  }
  return Put(memory);
}

Result<void> SegmentWriter::PutCopies(const Payload& payload, uint64_t begin_bytes,
                                      uint64_t length_bytes) {
  return FillBlocks(length_bytes, [&](uint64_t done, std::span<std::byte> target) {
    CAIRN_CHECK(block_copies_ == nullptr || block_copies_ == payload.queue());
    block_copies_ = payload.queue();
    return payload.CopyTo(begin_bytes + done, target);
  });
}

Result<void> SegmentWriter::PutZerosTo(uint64_t position) {
  if (position_ >= position) return {};
  return FillBlocks(position - position_, [&](uint64_t, std::span<std::byte> target) {
    // If the queue fills the gap, it can join the copies before and after the gap.
    if (block_copies_ != nullptr) return block_copies_->Zero(target);
    std::ranges::fill(target, std::byte{0});
    return Result<void>();
  });
}

Result<void> SegmentWriter::Align(SegmentAlignment alignment) {
  if (alignment == SegmentAlignment::kNone) return {};
  return PutZerosTo(RoundUp(position_, alignment == SegmentAlignment::k4096 ? 4096 : 64));
}

Result<uint64_t> SegmentWriter::PutPage(const Payload& payload, uint64_t begin_bytes,
                                        uint64_t length_bytes) {
  if (block_ == nullptr) CAIRN_TRY(TakeBlock());
  if (pool_->block_bytes() - fill_bytes_ >= length_bytes) {
    const std::span copy(block_ + fill_bytes_, length_bytes);
    CAIRN_TRY(payload.CopyTo(begin_bytes, copy));
    const uint64_t digest = PageDigest(copy);
    fill_bytes_ += length_bytes;
    position_ += length_bytes;
    if (fill_bytes_ == pool_->block_bytes()) CAIRN_TRY(SubmitBlock());
    return digest;
  }
  scratch_.resize(std::max<size_t>(scratch_.size(), length_bytes));
  const std::span copy = std::span(scratch_).first(length_bytes);
  CAIRN_TRY(payload.CopyTo(begin_bytes, copy));
  CAIRN_TRY(Put(copy));
  return PageDigest(copy);
}

Result<void> SegmentWriter::PutPages(const Payload& payload, uint64_t begin_bytes,
                                     uint64_t length_bytes, std::span<const uint64_t> page_digests,
                                     uint64_t page_bytes) {
  for (uint64_t done = 0; done < length_bytes; done += page_bytes) {
    const uint64_t count = std::min(page_bytes, length_bytes - done);
    CAIRN_TRY_ASSIGN(const uint64_t digest, PutPage(payload, begin_bytes + done, count));
    if (!page_digests.empty() && page_digests[done / page_bytes] != digest) {
      return Fail(PayloadChangedError());
    }
    page_digests_.push_back(digest);
  }
  return {};
}

Result<void> SegmentWriter::PutFromHost(const Payload& payload, uint64_t begin_bytes,
                                        uint64_t length_bytes,
                                        std::span<const uint64_t> page_digests,
                                        uint64_t page_bytes) {
  std::span<const std::byte> memory = payload.memory();
  if (!memory.empty()) memory = memory.subspan(begin_bytes, length_bytes);
  const bool is_borrowed = !payload.may_change() && CanBorrow(memory);
  if (!is_borrowed && (page_digests.empty() || payload.may_change())) {
    return PutPages(payload, begin_bytes, length_bytes, page_digests, page_bytes);
  }
  if (is_borrowed) {
    CAIRN_TRY(PutBorrowed(memory));
  } else {
    CAIRN_TRY(FillBlocks(length_bytes, [&](uint64_t done, std::span<std::byte> target) {
      return payload.CopyTo(begin_bytes + done, target);
    }));
  }
  page_digests_.insert(page_digests_.end(), page_digests.begin(), page_digests.end());
  // Of borrowed pages, the digests are computed while they are written.
  if (page_digests.empty()) AppendPageDigests(memory, page_digests_, page_bytes);
  return {};
}

Result<SegmentWriter::Appended> SegmentWriter::Append(const Payload& payload, uint64_t begin_bytes,
                                                      uint64_t length_bytes,
                                                      SegmentAlignment alignment,
                                                      std::span<const uint64_t> page_digests,
                                                      uint8_t page_bits) {
  const uint64_t page_bytes = uint64_t{1} << page_bits;
  const uint64_t page_count = PageCount(length_bytes, page_bytes);
  const bool is_queued = payload.queue() != nullptr;
  CAIRN_CHECK(begin_bytes % page_bytes == 0);
  CAIRN_CHECK(page_digests.size() == page_count || (page_digests.empty() && !is_queued));
  CAIRN_TRY(Align(alignment));
  const size_t first_page = page_digests_.size();
  Appended appended{.offset_bytes = position_,
                    .page_digests_at_bytes = first_page * sizeof(uint64_t),
                    .digest = {}};
  if (is_queued) {
    copies_run_ahead_ = true;
    CAIRN_TRY(PutCopies(payload, begin_bytes, length_bytes));
    page_digests_.insert(page_digests_.end(), page_digests.begin(), page_digests.end());
  } else {
    CAIRN_TRY(PutFromHost(payload, begin_bytes, length_bytes, page_digests, page_bytes));
  }
  appended.digest = RootDigest(std::span(page_digests_).subspan(first_page), length_bytes);
  payload_bytes_ += length_bytes;
  return appended;
}

Result<void> SegmentWriter::Finish(const std::string& attempt, const RecordList& records) {
  CAIRN_TRY(PassPoint("segment.seal", "cannot seal the segment", output_.path()));
  const auto page_digests = std::as_bytes(std::span(page_digests_));
  trailer_ = SegmentTrailer{.segment_id = header_.segment_id,
                            .payload_end_bytes = position_,
                            .page_digests_offset_bytes = page_digests_offset_bytes(),
                            .page_digest_count = page_digests_.size(),
                            .page_digests_checksum = Checksum64(page_digests)};
  CAIRN_TRY(PutZerosTo(trailer_.page_digests_offset_bytes));
  CAIRN_TRY(Put(page_digests));
  StreamChecksum64 footer_digest;
  CAIRN_TRY(EncodeSegmentFooter(header_, attempt, records, [&](std::span<const std::byte> piece) {
    footer_digest.Update(piece);
    return Put(piece);
  }));
  trailer_.footer_bytes = position_ - trailer_.footer_offset_bytes();
  trailer_.footer_digest = footer_digest.value();
  const uint64_t file_bytes = RoundUp(position_ + kSegmentTrailerBytes, kDirectAlignBytes);
  CAIRN_TRY(PutZerosTo(file_bytes - kSegmentTrailerBytes));
  std::array<std::byte, kSegmentTrailerBytes> trailer_bytes;
  EncodeSegmentTrailer(trailer_, trailer_bytes);
  CAIRN_CHECK(DecodeSegmentTrailer(trailer_bytes, file_bytes).has_value());
  CAIRN_TRY(Put(trailer_bytes));
  return fill_bytes_ > 0 ? SubmitBlock() : Result<void>();
}

Result<void> SegmentWriter::WriteWaiting() {
  while (queue_->in_flight() > 0 || !waiting_.empty()) {
    if (!waiting_.empty() && queue_->in_flight() < queue_->depth()) {
      CAIRN_TRY(SubmitOldest());
    } else {
      CAIRN_TRY(AwaitOne());
    }
  }
  return {};
}

void SegmentWriter::ReturnWaitingBlocks() {
  while (queue_->in_flight() > 0) {
    auto completion = queue_->Wait();
    if (!completion) break;
    if (completion->request.tag == kPoolBlock) pool_->Give(completion->request.data);
  }
  for (const WaitingBlock& block : waiting_) {
    // An error of the wait means that the device has failed and writes to no block any more.
    if (block.copies != nullptr) (void)block.copies->Await(block.copied_mark);
    pool_->Give(block.data);
  }
  waiting_.clear();
}

Result<void> SegmentWriter::KeepTail() {
  if (block_copies_ != nullptr) {
    CAIRN_TRY_ASSIGN(const uint64_t mark, block_copies_->Flush());
    CAIRN_TRY(block_copies_->Await(mark));
    block_copies_ = nullptr;
  }
  tail_.assign(block_, block_ + fill_bytes_);
  pool_->Give(block_);
  block_ = nullptr;
  fill_bytes_ = 0;
  return {};
}

Result<void> SegmentWriter::Drain() {
  // A caller that waits for its next payload must not hold a block.
  Result<void> written;
  if (output_.file() != nullptr) written = PutZerosTo(RoundUp(position_, kDirectAlignBytes));
  if (written && fill_bytes_ > 0) {
    written = output_.file() != nullptr ? SubmitBlock() : KeepTail();
  }
  if (written) written = WriteWaiting();
  if (!written) ReturnWaitingBlocks();  // other threads may be waiting for a block
  return written;
}

Result<void> SegmentWriter::Complete() {
  CAIRN_CHECK(trailer_.footer_bytes > 0);  // Finish was called
  CAIRN_TRY(Drain());
  return output_.Finish(position_);
}

SegmentInfo SegmentWriter::info() const {
  CAIRN_CHECK(trailer_.footer_bytes > 0);  // Finish was called
  SegmentInfo info = NewSegmentInfo(header_.id());
  info.step = header_.step;
  info.rank = header_.rank;
  info.file_bytes = position_;
  info.payload_bytes = payload_bytes_;
  info.chunk_count = chunk_count_;
  info.footer_digest = trailer_.footer_digest;
  info.page_digests_checksum = trailer_.page_digests_checksum;
  return info;
}

}  // namespace cairn::kv::internal
