// Reads some MiB at a time, verifies the pages, and appends them.

#include "kv/maintain/internal/payload_mover.h"

#include <algorithm>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/digest.h"
#include "kv/base/div.h"
#include "kv/base/payload.h"
#include "kv/base/read_range.h"
#include "kv/io/worker_pool.h"
#include "kv/root/internal/kv_records.h"
#include "kv/state/internal/root_change.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kPieceBytes = 8 << 20;   // the longest part of a range that is read at once
constexpr uint64_t kBatchBytes = 16 << 20;  // size of the pieces that are read together
constexpr size_t kBatchPieces = 4096;
constexpr uint32_t kBlocks = 4;
constexpr uint64_t kMinCompressedBytes = 4096;
static_assert(kPieceBytes % kMaxPageBytes == 0);

/// With a limit of bytes per second, returns what may pass in a tenth of a second: shorter pieces
/// keep the rate steady, and a limit also has an effect if little is moved.
uint64_t LongestBatch(uint64_t max_bytes_per_second) {
  if (max_bytes_per_second == 0) return kBatchBytes;
  const uint64_t pages = max_bytes_per_second / 10 / kPageBytes;
  return std::clamp<uint64_t>(pages * kPageBytes, kPageBytes, kBatchBytes);
}

SegmentStream::Options StreamOptions(StoreState& state, const std::string& name,
                                     BlockPool& blocks) {
  state.has_saved = true;
  return {.storage = state.storage,
          .store_uuid = state.uuid,
          .epoch = state.epoch,
          .step = 0,
          .rank = 0,
          .created_unix_ns = NowUnixNs(),
          .attempt = name,
          .io = *state.options.io,
          .pool = &blocks,
          .queues = state.queues.get(),
          .free_space = [&state](uint64_t& seen) { return FreeSpaceForSave(state, seen); }};
}

}  // namespace

uint32_t ElementBytes(const ChunkEntry& entry) {
  uint64_t elements = 1;
  for (const uint64_t size : entry.sizes) elements *= size;
  const uint64_t bytes = entry.extents.payload.length_bytes();
  return elements == 0 || bytes % elements != 0 ? 1 : static_cast<uint32_t>(bytes / elements);
}

struct PayloadMover::Piece {
  LiveRange* range = nullptr;
  uint64_t begin_bytes = 0;  // in the range
  uint64_t length_bytes = 0;

  uint64_t page_count() const { return PageCount(length_bytes, range->extent.page_bytes()); }
};

PayloadMover::PayloadMover(const CompactContext& context, std::shared_ptr<const Snapshot> snapshot,
                           const std::string& name)
    : context_(context),
      snapshot_(std::move(snapshot)),
      batch_bytes_(LongestBatch(context.options.max_bytes_per_second)),
      blocks_(context.state.options.io->block_bytes,
              std::min(kBlocks, context.state.options.io->queue_depth)),
      stream_(StreamOptions(context.state, name, blocks_),
              [this](const TableRecord& record) { return OnRecord(record); }) {}

PayloadMover::~PayloadMover() {
  CleanUp([&] {
    stream_.Abandon();
    if (is_kept_) return;
    for (const SegmentInfo& segment : stream_.sealed()) {
      (void)context_.state.storage->Remove(SegmentObject(segment));
    }
  });
}

Result<void> PayloadMover::OnRecord(const TableRecord& record) {
  if (record.column() != Column::kChunks) return {};
  CAIRN_TRY_ASSIGN(const ChunkExtents extents, DecodeChunkExtents(record.value));
  CAIRN_CHECK(!pending_.empty() && extents.payload.size() == 1);
  pending_.front()->push_back(extents.payload.front());
  pending_.pop_front();
  return {};
}

Result<void> PayloadMover::AwaitTurn(uint64_t bytes) {
  return context_.throttle.Await(bytes, [&] { return context_.progress(0); });
}

Result<void> PayloadMover::Append(std::span<const std::byte> bytes, SegmentAlignment alignment,
                                  std::span<const uint64_t> page_digests, uint8_t page_bits,
                                  std::string_view key, std::vector<Extent>& moved_to) {
  CAIRN_TRY_ASSIGN(const auto appended,
                   stream_.Append(CopiedBytes(bytes), alignment, page_digests, page_bits));
  pending_.push_back(&moved_to);
  stream_.AddChunk(key, {.sizes = {bytes.size()},
                         .extents = appended.extent,
                         .digest = appended.digest,
                         .since_step = 0});
  return {};
}

Result<void> PayloadMover::Move(std::span<LiveRange* const> ranges) {
  std::vector<Piece> batch;
  uint64_t batch_bytes = 0;
  for (LiveRange* const range : ranges) {
    const uint64_t length_bytes = range->extent.length_bytes;
    const uint64_t piece_bytes =
        range->is_delta ? length_bytes
                        : RoundUp(std::min(kPieceBytes, batch_bytes_), range->extent.page_bytes());
    for (uint64_t begin = 0; begin < length_bytes; begin += piece_bytes) {
      batch.push_back({.range = range,
                       .begin_bytes = begin,
                       .length_bytes = std::min(piece_bytes, length_bytes - begin)});
      batch_bytes += batch.back().length_bytes;
      if (batch_bytes < batch_bytes_ && batch.size() < kBatchPieces) continue;
      CAIRN_TRY(MoveBatch(batch));
      batch.clear();
      batch_bytes = 0;
    }
  }
  return MoveBatch(batch);
}

Result<void> PayloadMover::MoveBatch(std::span<const Piece> batch) {
  uint64_t bytes = 0;
  uint64_t pages = 0;
  for (const Piece& piece : batch) {
    bytes += piece.length_bytes;
    pages += piece.page_count();
  }
  if (bytes == 0) return {};
  CAIRN_TRY(AwaitTurn(bytes));
  buffer_.resize(std::max<size_t>(buffer_.size(), bytes));
  page_digests_.resize(pages);
  std::vector<ReadRange> reads;
  uint64_t byte = 0;
  uint64_t page = 0;
  for (const Piece& piece : batch) {
    const Extent from = piece.range->extent.From(piece.begin_bytes);
    const std::span digests = std::span(page_digests_).subspan(page, piece.page_count());
    const std::span target = std::span(buffer_).subspan(byte, piece.length_bytes);
    if (context_.read_pages) {
      CAIRN_TRY(context_.read_pages(from.First(piece.length_bytes), target, digests));
    } else {
      reads.push_back(
          {.segment_id = from.segment_id, .offset_bytes = from.offset_bytes, .target = target});
      reads.push_back({.segment_id = from.segment_id,
                       .offset_bytes = from.page_digests_offset_bytes,
                       .target = std::as_writable_bytes(digests)});
    }
    byte += piece.length_bytes;
    page += digests.size();
  }
  CAIRN_TRY(snapshot_->Read(reads, 1,
                            [](size_t, std::span<const std::byte>) -> Result<void> { return {}; }));
  std::vector<uint64_t> computed;
  byte = page = 0;
  for (const Piece& piece : batch) {
    const auto of_piece = std::span(buffer_).subspan(byte, piece.length_bytes);
    const std::span digests = std::span(page_digests_).subspan(page, piece.page_count());
    const Extent& from = piece.range->extent;
    computed.clear();
    AppendPageDigests(of_piece, computed, from.page_bytes());
    if (!std::ranges::equal(computed, digests)) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "a page does not match its digest, so its segment cannot be "
                                   "rewritten",
                        .key = piece.range->key});
    }
    SegmentAlignment alignment = SegmentAlignment::kNone;
    if (piece.begin_bytes == 0) {
      alignment = piece.range->is_aligned ? SegmentAlignment::k4096 : SegmentAlignment::k64;
    }
    CAIRN_TRY(Append(of_piece, alignment, digests, from.page_bits, piece.range->key,
                     piece.range->moved_to));
    byte += piece.length_bytes;
    page += digests.size();
  }
  return context_.progress(bytes);
}

Result<std::vector<std::byte>> PayloadMover::ReadChunk(const ChunkVersion& chunk,
                                                       std::vector<uint64_t>& page_digests) const {
  std::vector<std::byte> bytes(chunk.entry.extents.payload.length_bytes());
  CAIRN_TRY(context_.options.decode(snapshot_, chunk.key, chunk.entry.extents, bytes));
  AppendPageDigests(bytes, page_digests, chunk.entry.extents.payload.page_bytes());
  if (RootDigest(page_digests, bytes.size()) == chunk.entry.digest) return bytes;
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = "a chunk does not match its digest, so its segment cannot be "
                               "rewritten",
                    .key = chunk.key});
}

Result<void> PayloadMover::Rewrite(std::span<ChunkVersion* const> chunks) {
  struct NewBytes {
    std::vector<std::byte> bytes;
    std::vector<uint64_t> page_digests;
    bool is_compressed = false;
  };
  const CompressCallback& compress = context_.options.compress;
  const auto rewrite = [&](const ChunkVersion& chunk) -> Result<NewBytes> {
    NewBytes result;
    CAIRN_TRY_ASSIGN(result.bytes, ReadChunk(chunk, result.page_digests));
    if (!compress || result.bytes.size() < kMinCompressedBytes) return result;
    auto compressed = compress(result.bytes, ElementBytes(chunk.entry), result.page_digests);
    if (!compressed) return result;
    result = {.bytes = *std::move(compressed), .page_digests = {}, .is_compressed = true};
    AppendPageDigests(result.bytes, result.page_digests);
    return result;
  };
  WorkerPool pool(compress ? std::min<size_t>(WorkerThreads(), chunks.size()) : 1);
  for (size_t begin = 0; begin < chunks.size(); begin += pool.thread_count()) {
    const auto batch = chunks.subspan(begin, std::min(pool.thread_count(), chunks.size() - begin));
    for (const ChunkVersion* const chunk : batch) {
      CAIRN_TRY(AwaitTurn(chunk->entry.extents.payload.length_bytes()));
    }
    std::vector<Result<NewBytes>> results(batch.size());
    pool.Run(batch.size(), [&](size_t i, size_t) { results[i] = rewrite(*batch[i]); });
    for (size_t i = 0; i < batch.size(); ++i) {
      CAIRN_TRY_ASSIGN(const NewBytes written, std::move(results[i]));
      ChunkVersion& chunk = *batch[i];
      chunk.is_compressed = written.is_compressed;
      if (compress && !chunk.is_compressed && chunk.entry.extents.deltas.empty()) continue;
      const Extent& old = chunk.entry.extents.payload.front();
      CAIRN_TRY(Append(written.bytes,
                       chunk.is_compressed ? SegmentAlignment::k64 : SegmentAlignment::k4096,
                       written.page_digests, old.page_bits, chunk.key, chunk.moved_to));
      CAIRN_TRY(context_.progress(chunk.entry.extents.payload.length_bytes()));
    }
  }
  return {};
}

Result<void> PayloadMover::Seal() {
  CAIRN_TRY(stream_.Seal());
  CAIRN_CHECK(pending_.empty());
  LocalFiles* const files = context_.state.storage->local_files();
  if (stream_.sealed().empty() || files == nullptr) return {};
  return files->SyncNames(ObjectFolder(ObjectKind::kSegment));
}

}  // namespace cairn::kv::internal
