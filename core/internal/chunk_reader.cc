// Planning, reading, checking and scattering pieces of chunks; see the header.

#include "core/internal/chunk_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <thread>

namespace cairn::core::internal {

// Leaves are read from the segment as they lie.
static_assert(std::endian::native == std::endian::little);

Result<void> ChunkReader::Add(const std::string& fqn, const ChunkInfo& chunk,
                              StridedRegion region) {
  const uint64_t length = chunk.extent.length_bytes;
  std::byte* const direct = region.TargetOfRun(length);
  std::vector<bool> touched(direct == nullptr ? kv::PageCount(length) : 0);
  region.ForEachTouched(
      direct == nullptr ? length : 0, kv::kPageBytes, [&](uint64_t begin, uint64_t end) {
        for (uint64_t page = begin / kv::kPageBytes; page < kv::PageCount(end); ++page) {
          touched[page] = true;
        }
      });
  auto job = std::make_shared<Job>(Job{.fqn = fqn, .chunk = chunk, .region = std::move(region)});
  if (direct != nullptr) {
    job->whole = true;
    return AddPiece({.job = std::move(job), .memory = {direct, length}, .direct = true});
  }
  const auto first = std::ranges::find(touched, true);
  if (first == touched.end()) return {};
  if (std::find(first, touched.end(), false) == touched.end() && first == touched.begin() &&
      length <= kArenaBytes) {
    job->whole = true;
    if (arena_used_bytes_ + length > kArenaBytes) CAIRN_TRY(Flush());
    return AddPages(job, 0, length);
  }
  for (auto begin = first; begin != touched.end();) {
    const auto end = std::find(begin, touched.end(), false);
    CAIRN_TRY(
        AddPages(job, static_cast<uint64_t>(begin - touched.begin()) * kv::kPageBytes,
                 std::min(static_cast<uint64_t>(end - touched.begin()) * kv::kPageBytes, length)));
    begin = std::find(end, touched.end(), true);
  }
  return {};
}

Result<void> ChunkReader::AddPages(const std::shared_ptr<Job>& job, uint64_t begin_bytes,
                                   uint64_t end_bytes) {
  if (!arena_) arena_ = std::make_unique_for_overwrite<std::byte[]>(kArenaBytes);
  while (begin_bytes < end_bytes) {
    // Pieces begin on pages of the chunk, so whole pages or the tail fit in.
    const uint64_t room = kArenaBytes - arena_used_bytes_;
    const uint64_t left = end_bytes - begin_bytes;
    const uint64_t count = left <= room ? left : room / kv::kPageBytes * kv::kPageBytes;
    if (count == 0) {
      CAIRN_TRY(Flush());
      continue;
    }
    std::byte* const memory = arena_.get() + arena_used_bytes_;
    // Blocks of 64 bytes keep elements aligned; the end of the arena needs no rounding.
    arena_used_bytes_ = std::min(kArenaBytes, (arena_used_bytes_ + count + 63) / 64 * 64);
    CAIRN_TRY(AddPiece({.job = job, .begin_bytes = begin_bytes, .memory = {memory, count}}));
    begin_bytes += count;
  }
  return {};
}

Result<void> ChunkReader::AddPiece(Piece piece) {
  pieces_.push_back(std::move(piece));
  return pieces_.size() < kMaxPieces ? Result<void>() : Flush();
}

Result<void> ChunkReader::Flush() {
  if (pieces_.empty()) return {};
  std::vector<std::shared_ptr<Job>> partial;
  for (const Piece& piece : pieces_) {
    if (!piece.job->whole && !piece.job->leaves_checked &&
        (partial.empty() || partial.back() != piece.job)) {
      partial.push_back(piece.job);
    }
  }
  CAIRN_TRY(ReadLeaves(partial));
  std::ranges::stable_sort(pieces_, {}, [](const Piece& piece) {
    const kv::Extent& extent = piece.job->chunk.extent;
    return std::pair(extent.segment_id, extent.offset_bytes + piece.begin_bytes);
  });
  CAIRN_TRY(ReadPieces());
  pieces_.clear();
  arena_used_bytes_ = 0;
  return {};
}

Result<void> ChunkReader::ReadLeaves(std::span<const std::shared_ptr<Job>> jobs) {
  if (jobs.empty()) return {};
  std::vector<kv::ReadRange> ranges;
  for (const auto& job : jobs) {
    const kv::Extent& extent = job->chunk.extent;
    job->leaves.resize(kv::PageCount(extent.length_bytes));
    ranges.push_back({.segment_id = extent.segment_id,
                      .offset_bytes = extent.leaves_offset_bytes,
                      .target = std::as_writable_bytes(std::span(job->leaves))});
  }
  const auto arrived = [&](size_t i) -> Result<void> {
    Job& job = *jobs[i];
    const kv::Extent& extent = job.chunk.extent;
    if (kv::RootDigest(job.leaves, extent.length_bytes) != job.chunk.digest) {
      return Fail(DamagedBytes(view_, job.fqn, job.chunk,
                               fmt::format("the page digests of chunk {} do not match its record",
                                           FormatNumbers(job.chunk.box.offsets)),
                               extent.leaves_offset_bytes));
    }
    job.leaves_checked = true;
    return {};
  };
  CAIRN_TRY_ASSIGN(const uint64_t bytes, view_.snapshot->Read(ranges, 1, arrived));
  bytes_read_ += bytes;
  return {};
}

Result<void> ChunkReader::ReadPieces() {
  std::vector<kv::ReadRange> ranges;
  ranges.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    const kv::Extent& extent = piece.job->chunk.extent;
    ranges.push_back({.segment_id = extent.segment_id,
                      .offset_bytes = extent.offset_bytes + piece.begin_bytes,
                      .target = piece.memory});
  }
  std::atomic<const Piece*> mismatch = nullptr;
  const auto arrived = [&](size_t i) -> Result<void> {
    const Piece& piece = pieces_[i];
    if (!Matches(piece)) {
      mismatch = &piece;  // whichever was found last
      return Fail(ErrorCode::kDataLoss, "bytes do not match their digest");
    }
    if (!piece.direct) piece.job->region.CopyFrom(piece.memory, piece.begin_bytes);
    return progress_.Add(piece.memory.size());
  };
  const uint32_t threads = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
  auto bytes = view_.snapshot->Read(ranges, threads, arrived);
  // Which page it is takes another read, which must not begin inside this one.
  if (const Piece* const piece = mismatch) return Fail(Diagnose(*piece));
  if (!bytes) return Fail(std::move(bytes).error());
  bytes_read_ += *bytes;
  return progress_.Add(0);  // what other threads have read is told, too
}

bool ChunkReader::Matches(const Piece& piece) const {
  std::vector<uint64_t> computed;
  computed.reserve(kv::PageCount(piece.memory.size()));
  kv::AppendLeaves(piece.memory, computed);
  const Job& job = *piece.job;
  if (job.whole) {
    return kv::RootDigest(computed, job.chunk.extent.length_bytes) == job.chunk.digest;
  }
  const auto stored =
      std::span(job.leaves).subspan(piece.begin_bytes / kv::kPageBytes, computed.size());
  return std::ranges::equal(computed, stored);
}

Error ChunkReader::Diagnose(const Piece& piece) {
  Job& job = *piece.job;
  const kv::Extent& extent = job.chunk.extent;
  if (!job.leaves_checked) {
    const auto read = ReadLeaves({&piece.job, 1});
    if (!read) return read.error();
  }
  std::vector<uint64_t> computed;
  kv::AppendLeaves(piece.memory, computed);
  const uint64_t first = piece.begin_bytes / kv::kPageBytes;
  const auto stored = std::span(job.leaves).subspan(first, computed.size());
  const auto page =
      first + static_cast<uint64_t>(std::ranges::mismatch(computed, stored).in1 - computed.begin());
  return DamagedBytes(
      view_, job.fqn, job.chunk,
      fmt::format("page {} of chunk {} does not match its digest; the bytes on disk "
                  "have changed",
                  page, FormatNumbers(job.chunk.box.offsets)),
      extent.offset_bytes + page * kv::kPageBytes);
}

}  // namespace cairn::core::internal
