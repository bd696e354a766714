// Writing of segment files.

#include "kv/internal/segment/segment_writer.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kv/block_filler.h"
#include "kv/internal/io/fault_point.h"
#include "kv/step_info.h"
#include "kv/step_writer.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kFirstReserveBytes = 64ull << 20;
constexpr uint64_t kMaxReserveBytes = 1ull << 30;
// Less is not worth the end of the block before it.
constexpr uint64_t kMinBorrowedBytes = 256 << 10;

// Tags of requests: whose memory it is.
constexpr uint64_t kPoolBlock = 0;
constexpr uint64_t kBorrowed = 1;

}  // namespace

SegmentWriter::SegmentWriter(File file, std::string name, const SegmentHeader& header,
                             BlockPool* pool, IoQueue* queue, BlockFiller* filler)
    : file_(std::move(file)),
      name_(std::move(name)),
      header_(header),
      pool_(pool),
      queue_(queue),
      filler_(filler) {}

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(const std::string& directory,
                                                             const SegmentHeader& header,
                                                             bool direct, BlockPool* pool,
                                                             IoQueue* queue, BlockFiller* filler) {
  std::string name = SegmentName(header.step, header.rank, header.segment_id);
  const std::string path = directory + "/" + name;
  if (const int fault = FaultPoint("segment.create")) {
    return Fail(SystemError(fault, "cannot create the segment", path));
  }
  CAIRN_TRY_ASSIGN(File file, File::Create(path, direct));
  auto writer = std::unique_ptr<SegmentWriter>(
      new SegmentWriter(std::move(file), std::move(name), header, pool, queue, filler));
  if (filler != nullptr && writer->file_.direct()) {
    CAIRN_TRY_ASSIGN(writer->filler_writes_, filler->OpenFile(writer->file_.fd(), path));
  }
  std::vector<std::byte> bytes(kSegmentHeaderBytes);
  EncodeSegmentHeader(header, std::span<std::byte, kSegmentHeaderBytes>(bytes));
  CAIRN_TRY(writer->Put(bytes));
  return writer;
}

SegmentWriter::~SegmentWriter() {
  // What is still under way is so only after an error. No block goes back while a device may still
  // write to it.
  if (filler_writes_) filler_->CloseFile(file_.fd());
  if (block_is_filled_later_) filler_->Stop();
  GiveWaitingBack();
  if (block_ != nullptr) pool_->Give(block_);
  // Nothing refers to an unsealed file; what cannot be removed now is swept at the next open.
  if (!sealed_) (void)RemoveFile(file_.path());
}

bool SegmentWriter::IsFull(uint64_t length_bytes) const {
  return chunk_count_ > 0 && (chunk_count_ >= kMaxSegmentEntries ||
                              payload_bytes_ + length_bytes > kMaxSegmentPayloadBytes);
}

void SegmentWriter::Reserve(uint64_t end_bytes) {
  if (end_bytes <= reserved_bytes_) return;
  // Writes that extend a file are serialised by ext4 and xfs; allocating ahead avoids that. A file
  // system that cannot, or has little space left, just gets extending writes.
  const uint64_t ahead = std::clamp(end_bytes, kFirstReserveBytes, kMaxReserveBytes);
  const uint64_t wanted = RoundUp(end_bytes + pool_->block_bytes(), ahead);
  const uint64_t begin = std::max(reserved_bytes_, end_bytes);
  reserved_bytes_ = wanted;
  (void)::fallocate(file_.fd(), 0, static_cast<off_t>(begin), static_cast<off_t>(wanted - begin));
}

Result<void> SegmentWriter::AwaitOne() {
  CAIRN_TRY_ASSIGN(const IoCompletion completion, queue_->Wait());
  IoRequest request = completion.request;
  int error_number = completion.error_number;
  if (const int fault = FaultPoint("segment.write")) error_number = fault;
  if (error_number == EINVAL && file_.direct()) {
    // O_DIRECT was granted at open and is refused now; the same bytes go through the page cache.
    CAIRN_TRY(file_.DropDirect());
    return queue_->Submit(request);
  }
  if (request.tag == kPoolBlock) pool_->Give(request.data);
  if (error_number != 0) {
    return Fail(SystemError(error_number, "cannot write the segment", file_.path())
                    .WithOffset(request.offset_bytes));
  }
  if (completion.done_bytes != request.length_bytes) {
    return Fail(SystemError(ENOSPC, "the segment took only a part of a write", file_.path())
                    .WithOffset(request.offset_bytes));
  }
  return {};
}

Result<void> SegmentWriter::TakeBlock() {
  while (block_ == nullptr) {
    CAIRN_TRY(SubmitFilled());
    const bool has_room = queue_->in_flight() < queue_->depth();
    // A filler may run ahead of the disk, as far as there are blocks.
    if (has_room || filler_ != nullptr) block_ = pool_->TryTake();
    if (block_ != nullptr) break;
    if (has_room && !waiting_.empty()) {
      CAIRN_TRY(SubmitOldest());
    } else if (queue_->in_flight() > 0) {
      CAIRN_TRY(AwaitOne());
    } else {
      CAIRN_TRY_ASSIGN(block_, pool_->Take());
    }
  }
  fill_bytes_ = 0;
  return {};
}

Result<void> SegmentWriter::Submit(const WaitingBlock& block) {
  return queue_->Submit({.fd = file_.fd(),
                         .write = true,
                         .data = block.data,
                         .length_bytes = block.length_bytes,
                         .offset_bytes = block.offset_bytes,
                         .tag = kPoolBlock});
}

Result<void> SegmentWriter::SubmitBlock() {
  // The last block of a small segment needs no more than itself.
  if (fill_bytes_ == pool_->block_bytes()) Reserve(position_);
  WaitingBlock block{
      .data = block_, .length_bytes = fill_bytes_, .offset_bytes = position_ - fill_bytes_};
  if (block_is_filled_later_) {
    CAIRN_TRY_ASSIGN(block.filled, filler_->Seal());
  }
  block_is_filled_later_ = false;
  if (!block.filled && queue_->in_flight() < queue_->depth()) {
    CAIRN_TRY(Submit(block));
  } else {
    waiting_.push_back(block);
  }
  block_ = nullptr;
  fill_bytes_ = 0;
  return {};
}

Result<void> SegmentWriter::SubmitFilled() {
  if (waiting_.empty()) return {};
  while (queue_->HasCompletion()) CAIRN_TRY(AwaitOne());
  while (!waiting_.empty() && queue_->in_flight() < queue_->depth()) {
    if (waiting_.front().filled) {
      CAIRN_TRY_ASSIGN(const bool filled, filler_->Arrived(*waiting_.front().filled));
      if (!filled) return {};
    }
    CAIRN_TRY(SubmitOldest());
  }
  return {};
}

Result<void> SegmentWriter::SubmitOldest() {
  const WaitingBlock& block = waiting_.front();
  if (block.filled) CAIRN_TRY(filler_->Await(*block.filled));
  CAIRN_TRY(Submit(block));
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

bool SegmentWriter::CanBorrow(std::span<const std::byte> memory) const {
  const uint64_t head = RoundUp(position_, kDirectAlignBytes) - position_;
  return memory.size() >= kMinBorrowedBytes &&
         (reinterpret_cast<uintptr_t>(memory.data()) + head) % file_.memory_align_bytes() == 0;
}

Result<void> SegmentWriter::PutBorrowed(std::span<const std::byte> memory) {
  // The ends that fill no page go through blocks, with their neighbours.
  const uint64_t head = RoundUp(position_, kDirectAlignBytes) - position_;
  CAIRN_TRY(Put(memory.first(head)));
  memory = memory.subspan(head);
  if (fill_bytes_ > 0) CAIRN_TRY(SubmitBlock());
  while (memory.size() >= kDirectAlignBytes) {
    while (queue_->in_flight() == queue_->depth()) CAIRN_TRY(AwaitOne());
    const uint64_t part =
        std::min(pool_->block_bytes(), RoundDown(memory.size(), kDirectAlignBytes));
    Reserve(position_ + part);
    CAIRN_TRY(queue_->Submit({.fd = file_.fd(),
                              .write = true,
                              .data = const_cast<std::byte*>(memory.data()),  // only read
                              .length_bytes = part,
                              .offset_bytes = position_,
                              .tag = kBorrowed}));
    position_ += part;
    memory = memory.subspan(part);
  }
  return Put(memory);
}

Result<void> SegmentWriter::PutFilled(uint64_t begin_bytes, uint64_t end_bytes,
                                      const StepWriter::Fill& fill) {
  return FillBlocks(end_bytes - begin_bytes, [&](uint64_t done, std::span<std::byte> target) {
    block_is_filled_later_ = true;
    return fill.start(begin_bytes + done, target);
  });
}

Result<uint64_t> SegmentWriter::PutWithoutBlocks(uint64_t length_bytes,
                                                 const StepWriter::Fill& fill) {
  const uint64_t head = RoundUp(position_, kDirectAlignBytes) - position_;
  const uint64_t body = RoundDown(length_bytes - head, kDirectAlignBytes);
  Reserve(position_ + head + body);
  const auto written = fill.write(head, body, file_.fd(), position_ + head);
  if (!written) return Fail(Error(written.error()).WithFile(file_.path()));
  if (!*written) return 0;
  CAIRN_TRY(PutFilled(0, head, fill));
  if (fill_bytes_ > 0) CAIRN_TRY(SubmitBlock());
  position_ += body;
  return head + body;
}

Result<void> SegmentWriter::PutZerosTo(uint64_t position) {
  if (position_ >= position) return {};
  return FillBlocks(position - position_, [&](uint64_t, std::span<std::byte> target) {
    // What lies between two parts that the filler brings may come along with them.
    if (block_is_filled_later_) return filler_->Zero(target);
    std::ranges::fill(target, std::byte{0});
    return Result<void>();
  });
}

Result<void> SegmentWriter::Place(StepWriter::Placement placement) {
  using Placement = StepWriter::Placement;
  if (placement == Placement::kFollow) return {};
  return PutZerosTo(RoundUp(position_, placement == Placement::kAlign4096 ? 4096 : 64));
}

Result<SegmentWriter::Appended> SegmentWriter::Append(uint64_t length_bytes,
                                                      StepWriter::Placement placement,
                                                      const StepWriter::PageSource& pages,
                                                      std::span<const uint64_t> page_digests,
                                                      std::span<const std::byte> memory) {
  CAIRN_TRY(Place(placement));
  const uint64_t page_count = PageCount(length_bytes);
  CAIRN_CHECK(page_digests.empty() || page_digests.size() == page_count);
  Appended appended{.offset_bytes = position_, .first_page_digest = page_digests_.size(), .digest = {}};
  scratch_.resize(kPageBytes);
  const bool borrow = CanBorrow(memory);
  if (borrow) CAIRN_TRY(PutBorrowed(memory));
  for (uint64_t page = 0; page < page_count; ++page) {
    const std::span<const std::byte> bytes = pages(page, scratch_);
    CAIRN_CHECK(bytes.size() == std::min(kPageBytes, length_bytes - page * kPageBytes));
    // Digested after the copy has pulled the page into the cache, or while it is being written.
    if (!borrow) CAIRN_TRY(Put(bytes));
    page_digests_.push_back(page_digests.empty() ? PageDigest(bytes) : page_digests[page]);
  }
  appended.digest = RootDigest(std::span(page_digests_).subspan(appended.first_page_digest), length_bytes);
  payload_bytes_ += length_bytes;
  return appended;
}

Result<SegmentWriter::Appended> SegmentWriter::AppendFilled(uint64_t length_bytes,
                                                            StepWriter::Placement placement,
                                                            std::span<const uint64_t> page_digests,
                                                            const StepWriter::Fill& fill) {
  CAIRN_CHECK(filler_ != nullptr && page_digests.size() == PageCount(length_bytes));
  CAIRN_TRY(Place(placement));
  Appended appended{.offset_bytes = position_, .first_page_digest = page_digests_.size(), .digest = {}};
  uint64_t done_bytes = 0;
  if (filler_writes_ && fill.write && length_bytes >= kMinBorrowedBytes) {
    CAIRN_TRY_ASSIGN(done_bytes, PutWithoutBlocks(length_bytes, fill));
  }
  CAIRN_TRY(PutFilled(done_bytes, length_bytes, fill));
  page_digests_.insert(page_digests_.end(), page_digests.begin(), page_digests.end());
  appended.digest = RootDigest(page_digests, length_bytes);
  payload_bytes_ += length_bytes;
  return appended;
}

Result<SegmentInfo> SegmentWriter::Seal(const std::string& attempt,
                                        std::span<const FooterEntry> entries) {
  CAIRN_TRY(Finish(attempt, entries));
  return Complete();
}

Result<void> SegmentWriter::Finish(const std::string& attempt,
                                   std::span<const FooterEntry> entries) {
  if (const int fault = FaultPoint("segment.seal")) {
    return Fail(SystemError(fault, "cannot seal the segment", file_.path()));
  }
  const std::vector<std::byte> footer = EncodeSegmentFooter(header_, attempt, entries);
  const auto page_digests = std::as_bytes(std::span(page_digests_));
  trailer_ = SegmentTrailer{.segment_id = header_.segment_id,
                            .payload_end_bytes = position_,
                            .page_digests_offset_bytes = page_digests_offset_bytes(),
                            .page_digest_count = page_digests_.size(),
                            .footer_bytes = footer.size(),
                            .page_digests_checksum = Checksum64(page_digests),
                            .footer_digest = Checksum64(footer)};
  CAIRN_TRY(PutZerosTo(trailer_.page_digests_offset_bytes));
  CAIRN_TRY(Put(page_digests));
  CAIRN_TRY(Put(footer));
  const uint64_t file_bytes = RoundUp(position_ + kSegmentTrailerBytes, kDirectAlignBytes);
  CAIRN_TRY(PutZerosTo(file_bytes - kSegmentTrailerBytes));
  std::array<std::byte, kSegmentTrailerBytes> trailer_bytes;
  EncodeSegmentTrailer(trailer_, trailer_bytes);
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

void SegmentWriter::GiveWaitingBack() {
  while (queue_->in_flight() > 0) {
    auto completion = queue_->Wait();
    if (!completion) break;
    if (completion->request.tag == kPoolBlock) pool_->Give(completion->request.data);
  }
  for (const WaitingBlock& block : waiting_) {
    // An error of the wait says that the device has failed, and then it writes nothing any more.
    if (block.filled) (void)filler_->Await(*block.filled);
    pool_->Give(block.data);
  }
  waiting_.clear();
}

Result<void> SegmentWriter::Drain() {
  // The last block too: who waits for the next payload must not hold one.
  auto written = PutZerosTo(RoundUp(position_, kDirectAlignBytes));
  if (written && fill_bytes_ > 0) written = SubmitBlock();
  if (written) written = WriteWaiting();
  if (!written) GiveWaitingBack();  // others may stand waiting for a block
  if (!filler_writes_) return written;
  auto arrived = filler_->AwaitFile(file_.fd());
  CAIRN_TRY(std::move(written));
  if (!arrived) return Fail(std::move(arrived).error().WithFile(file_.path()));
  return {};
}

Result<SegmentInfo> SegmentWriter::Complete() {
  CAIRN_TRY(Drain());
  if (std::exchange(filler_writes_, false)) filler_->CloseFile(file_.fd());
  CAIRN_TRY(file_.Truncate(position_));
  CAIRN_TRY(file_.Sync("segment.sync"));
  sealed_ = true;
  return SegmentInfo{.segment_id = header_.segment_id,
                     .name = name_,
                     .step = header_.step,
                     .rank = header_.rank,
                     .file_bytes = position_,
                     .payload_bytes = payload_bytes_,
                     .chunk_count = chunk_count_,
                     .footer_digest = trailer_.footer_digest,
                     .page_digests_checksum = trailer_.page_digests_checksum};
}

}  // namespace cairn::kv::internal
