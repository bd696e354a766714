// Reads a few blocks of the source at once, verifies them in the order of their offsets, and writes
// them in this order while the next ones are read.
//
//   [0, 4096)                     a new header
//   [4096, page_digests_offset)   read from the source, and compared with the page digests
//   [page_digests_offset, end)    page digests, footer and trailer, which were verified before

#include "kv/maintain/internal/segment_copy.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/digest.h"
#include "kv/base/div.h"
#include "kv/base/read_range.h"
#include "kv/io/internal/fault_point.h"
#include "kv/io/io_queue.h"
#include "kv/root/internal/kv_records.h"
#include "kv/segment/internal/read_scheduler.h"
#include "kv/segment/internal/segment_files.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/segment/internal/segment_output.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/internal/object_reader.h"

namespace cairn::kv::internal {
namespace {

std::string PathOf(const CopyContext& context, const SegmentInfo& info) {
  return ObjectPath(context.source->storage->address(), SegmentObject(info));
}

/// Adds the location of the source to an error of it, and explains why an object is missing.
Error OfSource(const CopyContext& context, const SegmentInfo& info, Error error) {
  error = std::move(error).WithFile(PathOf(context, info));
  return error.code == ErrorCode::kNotFound ? context.source->Explain(std::move(error)) : error;
}

/// Compares the payload of a segment with its page digests while it passes in pieces.
/// Ownership: `segment` outlives it. Threads: one.
class PayloadCheck {
 public:
  /// `path` is the path of the segment, for error messages.
  PayloadCheck(const SegmentDescription& segment, std::string path)
      : segment_(segment), path_(std::move(path)) {}

  /// Checks the next bytes. The first ones follow the header; the last ones precede the page
  /// digests. kDataLoss: a page does not match its digest, a gap is not zero, or the footer refers
  /// to page digests that the segment does not have; names the offset.
  Result<void> Add(std::span<const std::byte> bytes);
  /// Returns whether all bytes up to the page digests have been checked.
  bool IsComplete() const { return at_ == segment_.trailer.page_digests_offset_bytes; }

 private:
  Result<void> AddToPage(std::span<const std::byte> bytes, uint64_t page_begin, uint64_t page_end);
  Result<void> ComparePage(uint64_t page_begin, uint64_t digest) const;

  const SegmentDescription& segment_;
  const std::string path_;
  uint64_t at_ = kSegmentHeaderBytes;        // position of the next byte
  size_t extent_ = 0;                        // the first one that does not end before at_
  std::optional<StreamChecksum64> partial_;  // digest of a page that several pieces contain
};

Result<void> PayloadCheck::Add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    while (extent_ < segment_.extents.size() &&
           segment_.extents[extent_].offset_bytes + segment_.extents[extent_].length_bytes <= at_) {
      ++extent_;
    }
    const bool is_last_gap = extent_ == segment_.extents.size();
    const uint64_t begin = is_last_gap ? segment_.trailer.page_digests_offset_bytes
                                       : segment_.extents[extent_].offset_bytes;
    uint64_t end = begin;
    if (at_ < begin) {
      const auto gap = bytes.first(std::min<uint64_t>(bytes.size(), begin - at_));
      CAIRN_TRY(CheckZeros(gap, at_, path_));
      end = at_ + gap.size();
    } else {
      CAIRN_CHECK(!is_last_gap);  // the caller gave bytes after the payload
      const Extent& extent = segment_.extents[extent_];
      const uint64_t page_begin = begin + RoundDown(at_ - begin, extent.page_bytes());
      const uint64_t page_end =
          std::min(page_begin + extent.page_bytes(), begin + extent.length_bytes);
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), page_end - at_));
      CAIRN_TRY(AddToPage(part, page_begin, page_end));
      end = at_ + part.size();
    }
    bytes = bytes.subspan(end - at_);
    at_ = end;
  }
  return {};
}

Result<void> PayloadCheck::AddToPage(std::span<const std::byte> bytes, uint64_t page_begin,
                                     uint64_t page_end) {
  if (at_ == page_begin) {
    if (bytes.size() == page_end - page_begin) return ComparePage(page_begin, PageDigest(bytes));
    partial_.emplace();
  }
  partial_->Update(bytes);
  if (at_ + bytes.size() < page_end) return {};
  const uint64_t digest = partial_->value();
  partial_.reset();
  return ComparePage(page_begin, digest);
}

Result<void> PayloadCheck::ComparePage(uint64_t page_begin, uint64_t digest) const {
  const Extent& extent = segment_.extents[extent_];
  const uint64_t first = segment_.trailer.page_digests_offset_bytes;
  const uint64_t page = (page_begin - extent.offset_bytes) / extent.page_bytes();
  const uint64_t digest_at = extent.page_digests_offset_bytes + 8 * page;
  const auto fail = [&](const char* message) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = message,
                      .file = path_,
                      .offset_bytes = page_begin});
  };
  if (digest_at < first || (digest_at - first) % 8 != 0 ||
      (digest_at - first) / 8 >= segment_.page_digests.size()) {
    return fail("the footer refers to page digests that the segment does not have");
  }
  if (segment_.page_digests[(digest_at - first) / 8] == digest) return {};
  return fail("a page of the segment does not match its digest");
}

/// The copy of one segment whose header, footer and trailer were verified.
class SegmentCopy {
 public:
  /// `info` and `description` outlive it.
  SegmentCopy(const CopyContext& context, const SegmentInfo& info,
              const SegmentDescription& description, SegmentOutput output)
      : context_(context),
        info_(info),
        description_(description),
        output_(std::move(output)),
        pool_(*context.target.pool),
        file_bytes_(info.file_bytes),
        check_(description, PathOf(context, info)) {}

  ~SegmentCopy() {
    for (std::byte* const block : blocks_) pool_.Give(block);
    while (writes_ != nullptr && writes_->in_flight() > 0) {
      auto completion = writes_->Wait();
      if (!completion) break;
      pool_.Give(completion->request.data);
    }
    context_.target.queues->Give(std::move(writes_));
  }
  SegmentCopy(const SegmentCopy&) = delete;
  SegmentCopy& operator=(const SegmentCopy&) = delete;

  Result<void> Run() {
    CAIRN_TRY_ASSIGN(writes_, TakeSegmentQueue(*context_.target.storage, *context_.target.queues,
                                               context_.target.options.io->queue_depth));
    if (File* const file = output_.file()) {
      // ext4 and xfs serialise writes that extend a file. Without space, the writes fail.
      (void)::fallocate(file->fd(), 0, 0, static_cast<off_t>(file_bytes_));
    }
    while (written_bytes_ < file_bytes_) {
      CAIRN_TRY(TakeBlocks());
      CAIRN_TRY(ReadBlocks());
      while (!blocks_.empty()) CAIRN_TRY(WriteFirst());
    }
    while (writes_->in_flight() > 0) CAIRN_TRY(FinishWrite());
    CAIRN_CHECK(check_.IsComplete());
    CAIRN_TRY(PassPoint("segment.seal", "cannot seal the segment", output_.path()));
    return output_.Finish(file_bytes_);
  }

 private:
  /// Takes half of the blocks of the pool, or what other threads leave of it: the other half is
  /// written while these are read.
  Result<void> TakeBlocks() {
    const uint32_t most = std::min(pool_.block_count(), writes_->depth());
    const uint32_t half = std::max(most / 2, 1u);
    while (writes_->in_flight() > most - half) CAIRN_TRY(FinishWrite());
    const uint64_t left = DivCeil(file_bytes_ - written_bytes_, pool_.block_bytes());
    while (blocks_.size() < std::min<uint64_t>(half, left)) {
      std::byte* block = pool_.TryTake();
      if (block == nullptr) {
        // A thread that has a block does not wait for another.
        if (!blocks_.empty()) return {};
        if (writes_->in_flight() > 0) {
          CAIRN_TRY(FinishWrite());
          continue;
        }
        CAIRN_TRY_ASSIGN(block, pool_.Take());
      }
      blocks_.push_back(block);
    }
    return {};
  }

  /// Returns the part of the block that begins at `at` which is read from the source.
  std::pair<uint64_t, uint64_t> PayloadIn(uint64_t at) const {
    const uint64_t begin = std::max(at, kSegmentHeaderBytes);
    const uint64_t end =
        std::min(at + pool_.block_bytes(), description_.trailer.page_digests_offset_bytes);
    return {begin, std::max(begin, end)};
  }

  Result<void> ReadBlocks() {
    std::vector<ReadRange> ranges;
    uint64_t bytes = 0;
    uint64_t at = written_bytes_;
    for (std::byte* const block : blocks_) {
      const auto [begin, end] = PayloadIn(at);
      if (begin < end) {
        ranges.push_back({.segment_id = info_.segment_id,
                          .offset_bytes = begin,
                          .target = {block + (begin - at), end - begin}});
      }
      bytes += end - begin;
      at += pool_.block_bytes();
    }
    CAIRN_TRY(context_.throttle.Await(bytes, [&] { return context_.progress(0); }));
    const SnapshotState& source = *context_.source;
    const auto read = ReadRanges(
        ranges, *source.options.io, /*threads=*/1, *source.read_pool,
        {.storage = *source.storage,
         .queues = *source.queues,
         .open = [&source](uint64_t segment_id) { return source.OpenSegment(segment_id); }},
        [](size_t, std::span<const std::byte>) { return Result<void>(); });
    return read ? Result<void>() : Fail(OfSource(context_, info_, read.error()));
  }

  struct Block {
    std::byte* data = nullptr;
    uint64_t begin_bytes = 0;  // in the segment
    uint64_t end_bytes = 0;
  };

  /// Verifies the first block, completes it, and begins to write it.
  Result<void> WriteFirst() {
    const Block block{.data = blocks_.front(),
                      .begin_bytes = written_bytes_,
                      .end_bytes = std::min(written_bytes_ + pool_.block_bytes(), file_bytes_)};
    const auto [begin, end] = PayloadIn(block.begin_bytes);
    CAIRN_TRY(check_.Add({block.data + (begin - block.begin_bytes), end - begin}));
    if (block.begin_bytes == 0) PutHeader(block.data);
    PutDescription(block);
    const uint64_t length_bytes = block.end_bytes - block.begin_bytes;
    CAIRN_TRY(writes_->Submit(
        output_.Write(block.data, length_bytes, block.begin_bytes, block.begin_bytes)));
    blocks_.pop_front();
    written_bytes_ = block.end_bytes;
    return context_.progress(length_bytes);
  }

  void PutHeader(std::byte* data) const {
    SegmentHeader header = description_.header;
    header.store_uuid = context_.target.uuid;
    header.epoch = *context_.target.copy_epoch;
    EncodeSegmentHeader(header,
                        std::span<std::byte, kSegmentHeaderBytes>(data, kSegmentHeaderBytes));
  }

  /// Copies `bytes`, which begin at `offset_bytes` of the segment, as far as they are in the block.
  static void PutPart(const Block& block, uint64_t offset_bytes, std::span<const std::byte> bytes) {
    const uint64_t begin = std::max(block.begin_bytes, offset_bytes);
    const uint64_t end = std::min(block.end_bytes, offset_bytes + bytes.size());
    if (begin >= end) return;
    std::memcpy(block.data + (begin - block.begin_bytes), bytes.data() + (begin - offset_bytes),
                end - begin);
  }

  /// Fills what follows the payload.
  void PutDescription(const Block& block) const {
    const SegmentTrailer& trailer = description_.trailer;
    const uint64_t begin = std::max(block.begin_bytes, trailer.page_digests_offset_bytes);
    if (begin >= block.end_bytes) return;
    std::memset(block.data + (begin - block.begin_bytes), 0, block.end_bytes - begin);
    PutPart(block, trailer.page_digests_offset_bytes,
            std::as_bytes(std::span(description_.page_digests)));
    PutPart(block, trailer.footer_offset_bytes(), description_.footer);
    std::array<std::byte, kSegmentTrailerBytes> trailer_bytes;
    EncodeSegmentTrailer(trailer, trailer_bytes);
    PutPart(block, file_bytes_ - kSegmentTrailerBytes, trailer_bytes);
  }

  Result<void> FinishWrite() {
    return output_.AwaitWrite(*writes_,
                              [this](const IoRequest& request) { pool_.Give(request.data); });
  }

  const CopyContext& context_;
  const SegmentInfo& info_;
  const SegmentDescription& description_;
  SegmentOutput output_;
  BlockPool& pool_;
  const uint64_t file_bytes_;
  PayloadCheck check_;
  std::deque<std::byte*> blocks_;    // of the next bytes; not submitted yet
  uint64_t written_bytes_ = 0;       // submitted
  std::unique_ptr<IoQueue> writes_;  // to output_
};

Result<SegmentDescription> ReadDescription(const CopyContext& context, const SegmentInfo& info) {
  CAIRN_TRY_ASSIGN(const ObjectReader reader,
                   ObjectReader::Open(context.source->storage, SegmentObject(info)));
  return ReadSegmentDescription(reader, context.source->uuid, info);
}

}  // namespace

Result<SegmentInfo> CopySegment(const CopyContext& context, const SegmentInfo& info) {
  StoreState& target = context.target;
  auto description = ReadDescription(context, info);
  if (!description) return Fail(OfSource(context, info, std::move(description).error()));
  SegmentInfo copied = info;
  copied.epoch = *target.copy_epoch;
  copied.name = NewSegmentInfo(IdOf(copied)).name;
  const std::string name = SegmentObject(copied);
  auto output = SegmentOutput::Create(
      *target.storage, name, target.options.io->direct, target.pool->block_bytes(),
      [&target](uint64_t& seen) { return FreeSpaceForSave(target, seen); });
  if (!output) {
    Error error = std::move(output).error();
    // A directory into which an older backup was restored may have files of later epochs.
    if (error.code == ErrorCode::kConflict) error.code = ErrorCode::kUnavailable;
    return Fail(std::move(error));
  }
  const Result<void> written = SegmentCopy(context, info, *description, *std::move(output)).Run();
  if (written) return copied;
  // The storage may have performed a Finish that it reported as failed, or may still perform it.
  // Neither this removal nor what it misses matters: the name is not written again.
  (void)target.storage->Remove(name);
  return Fail(written.error());
}

}  // namespace cairn::kv::internal
