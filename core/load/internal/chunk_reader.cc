// Planning, reading, checking and scattering pieces of chunks; see the header.

#include "core/load/internal/chunk_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/step/contents.h"
#include "core/step/internal/stored_page_digests.h"
#include "kv/read_range.h"

namespace cairn::core::internal {

static_assert(kv::ReadRange::kMaxLentBytes % kv::kPageBytes == 0);

Result<void> ChunkReader::Add(const std::string& fqn, const ChunkInfo& chunk,
                              StridedRegion region) {
  const uint64_t length = chunk.length_bytes();
  if (std::byte* const target = region.TargetOfRun(length)) {
    auto job = std::make_shared<Job>(fqn, chunk, std::move(region));
    job->whole = true;
    job->missing_bytes = length;
    return AddPieces(job, 0, length, target);
  }
  std::vector<bool> touched(kv::PageCount(length));
  region.ForEachTouched(length, kv::kPageBytes, [&](uint64_t begin, uint64_t end) {
    for (uint64_t page = begin / kv::kPageBytes; page < kv::PageCount(end); ++page) {
      touched[page] = true;
    }
  });
  auto job = std::make_shared<Job>(fqn, chunk, std::move(region));
  if (std::ranges::find(touched, false) == touched.end()) {
    job->whole = true;
    job->missing_bytes = length;
    return AddPieces(job, 0, length);
  }
  for (auto begin = std::ranges::find(touched, true); begin != touched.end();) {
    const auto end = std::find(begin, touched.end(), false);
    CAIRN_TRY(
        AddPieces(job, static_cast<uint64_t>(begin - touched.begin()) * kv::kPageBytes,
                  std::min(static_cast<uint64_t>(end - touched.begin()) * kv::kPageBytes, length)));
    begin = std::find(end, touched.end(), true);
  }
  return {};
}

Result<void> ChunkReader::AddPieces(const std::shared_ptr<Job>& job, uint64_t begin_bytes,
                                    uint64_t end_bytes, std::byte* target) {
  const uint64_t max_bytes = target == nullptr ? kv::ReadRange::kMaxLentBytes : end_bytes;
  uint64_t extent_begin = 0;
  for (const kv::Extent& extent : job->chunk.extents) {
    const uint64_t end = std::min(end_bytes, extent_begin + extent.length_bytes);
    for (uint64_t begin = std::max(begin_bytes, extent_begin); begin < end;) {
      const uint64_t count = std::min(max_bytes, end - begin);
      CAIRN_TRY(AddPiece({.job = job,
                          .begin_bytes = begin,
                          .length_bytes = count,
                          .target = target == nullptr ? nullptr : target + begin}));
      begin += count;
    }
    extent_begin += extent.length_bytes;
  }
  return {};
}

Result<void> ChunkReader::AddPiece(Piece piece) {
  const uint64_t length = piece.job->chunk.length_bytes();
  if (piece.job->whole && piece.length_bytes < length && piece.job->computed.empty()) {
    piece.job->computed.resize(kv::PageCount(length));
  }
  added_.push_back(std::move(piece));
  return added_.size() < batch_pieces_ ? Result<void>() : HandOver();
}

Result<void> ChunkReader::HandOver() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return handed_over_.empty() || ended_; });
  if (ended_) return Fail(ErrorCode::kCancelled, "the reading has ended");
  handed_over_ = std::exchange(added_, {});
  batch_pieces_ = std::min(2 * batch_pieces_, kMaxPieces);
  changed_.notify_all();
  return {};
}

void ChunkReader::Close(Result<void> added) {
  if (added && !added_.empty()) added = HandOver();
  const std::lock_guard lock(mutex_);
  added_all_ = std::move(added);
  changed_.notify_all();
}

Result<void> ChunkReader::TakePieces() {
  constexpr auto kBetweenSigns = std::chrono::milliseconds(50);
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return !handed_over_.empty() || added_all_; };
  while (!changed_.wait_for(lock, kBetweenSigns, ready)) {
    lock.unlock();
    CAIRN_TRY(progress_.Add(0));  // the caller may want to stop
    lock.lock();
  }
  // What cannot be planned fails the load, whatever else could still be read.
  if (added_all_ && !*added_all_) return *added_all_;
  pieces_ = std::exchange(handed_over_, {});
  changed_.notify_all();
  return {};
}

Result<void> ChunkReader::ReadAll() {
  // However it ends, by an exception too: the thread that adds must not wait for ever.
  const std::unique_ptr<ChunkReader, void (*)(ChunkReader*)> end(this, [](ChunkReader* reader) {
    const std::lock_guard lock(reader->mutex_);
    reader->ended_ = true;
    reader->changed_.notify_all();
  });
  while (true) {
    CAIRN_TRY(TakePieces());
    if (pieces_.empty()) return {};
    CAIRN_TRY(ReadBatch());
  }
}

Result<void> ChunkReader::ReadBatch() {
  std::vector<std::shared_ptr<Job>> partial;
  for (const Piece& piece : pieces_) {
    if (!piece.job->whole && piece.job->stored.empty() &&
        (partial.empty() || partial.back() != piece.job)) {
      partial.push_back(piece.job);
    }
  }
  CAIRN_TRY(ReadPageDigests(partial));
  CAIRN_TRY(ReadPieces());
  pieces_.clear();
  return {};
}

Result<void> ChunkReader::ReadPageDigests(std::span<const std::shared_ptr<Job>> jobs) {
  if (jobs.empty()) return {};
  std::vector<kv::ReadRange> ranges;
  for (const auto& job : jobs) AddPageDigestRanges(job->chunk.extents, job->stored, ranges);
  CAIRN_TRY_ASSIGN(const uint64_t bytes,
                   view_.snapshot->Read(ranges, 1, [](size_t, auto) { return Result<void>(); }));
  bytes_read_ += bytes;
  for (const auto& job : jobs) {
    if (kv::RootDigest(job->stored, job->chunk.length_bytes()) != job->chunk.digest) {
      return Fail(WrongPageDigests(*job));
    }
  }
  return {};
}

Error ChunkReader::WrongPageDigests(const Job& job) const {
  // Of several runs it is one whose digests are not those of its pages.
  kv::Extent wrong = job.chunk.extents.front();
  size_t page = 0;
  for (const kv::Extent& extent : job.chunk.extents) {
    const auto count = static_cast<size_t>(kv::PageCount(extent.length_bytes));
    std::vector<std::byte> bytes(job.chunk.extents.size() > 1 ? extent.length_bytes : 0);
    std::vector<uint64_t> computed;
    const kv::ReadRange range{
        .segment_id = extent.segment_id, .offset_bytes = extent.offset_bytes, .target = bytes};
    if (bytes.empty() ||
        !view_.snapshot->Read({&range, 1}, 1, [](size_t, auto) { return Result<void>(); })) {
      break;
    }
    kv::AppendPageDigests(bytes, computed);
    if (!std::ranges::equal(computed, std::span(job.stored).subspan(page, count))) {
      wrong = extent;
      break;
    }
    page += count;
  }
  return DamagedBytes(view_, job.fqn, wrong.segment_id,
                      fmt::format("the page digests of chunk {} do not match its record",
                                  FormatNumbers(job.chunk.box.offsets)),
                      wrong.page_digests_offset_bytes);
}

Result<void> ChunkReader::ReadPieces() {
  std::vector<kv::ReadRange> ranges;
  ranges.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    const kv::Extent at = piece.job->chunk.extents.At(piece.begin_bytes);
    kv::ReadRange range{.segment_id = at.segment_id, .offset_bytes = at.offset_bytes};
    if (piece.target == nullptr) {
      range.lent_bytes = piece.length_bytes;
    } else {
      range.target = {piece.target, piece.length_bytes};
    }
    ranges.push_back(range);
  }
  const uint32_t threads = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
  const auto arrived = [&](size_t i, std::span<const std::byte> piece_bytes) {
    return Arrived(pieces_[i], piece_bytes);
  };
  auto bytes = view_.snapshot->Read(ranges, threads, arrived);
  // Which page it is takes another read, which must not begin inside this one.
  if (mismatch_) return Fail(Diagnose(*std::exchange(mismatch_, std::nullopt)));
  if (!bytes) return Fail(std::move(bytes).error());
  bytes_read_ += *bytes;
  return progress_.Add(0);  // what other threads have read is told, too
}

Result<void> ChunkReader::Arrived(const Piece& piece, std::span<const std::byte> bytes) {
  CAIRN_TRY(piece.job->whole ? CheckWhole(piece, bytes) : CheckPart(piece, bytes));
  if (piece.target == nullptr) piece.job->region.CopyFrom(bytes, piece.begin_bytes);
  return progress_.Add(bytes.size());
}

Result<void> ChunkReader::CheckWhole(const Piece& piece, std::span<const std::byte> bytes) {
  Job& job = *piece.job;
  const uint64_t length = job.chunk.length_bytes();
  if (bytes.size() == length) {
    if (kv::PayloadDigest(bytes) == job.chunk.digest) return {};
    kv::AppendPageDigests(bytes, job.computed);
    return Mismatched({.job = piece.job});
  }
  uint64_t page = piece.begin_bytes / kv::kPageBytes;
  for (uint64_t at = 0; at < bytes.size(); at += kv::kPageBytes) {
    job.computed[page++] =
        kv::PageDigest(bytes.subspan(at, std::min<uint64_t>(kv::kPageBytes, bytes.size() - at)));
  }
  // Whoever brings the last bytes sees the digests of all others.
  if (job.missing_bytes.fetch_sub(bytes.size()) != bytes.size()) return {};
  if (kv::RootDigest(job.computed, length) == job.chunk.digest) return {};
  return Mismatched({.job = piece.job});
}

Result<void> ChunkReader::CheckPart(const Piece& piece, std::span<const std::byte> bytes) {
  uint64_t page = piece.begin_bytes / kv::kPageBytes;
  for (uint64_t at = 0; at < bytes.size(); at += kv::kPageBytes, ++page) {
    const uint64_t page_digest =
        kv::PageDigest(bytes.subspan(at, std::min<uint64_t>(kv::kPageBytes, bytes.size() - at)));
    if (page_digest != piece.job->stored[page]) return Mismatched({.job = piece.job, .page = page});
  }
  return {};
}

Result<void> ChunkReader::Mismatched(Mismatch mismatch) {
  const std::lock_guard lock(mutex_);
  if (!mismatch_) mismatch_ = std::move(mismatch);
  return Fail(ErrorCode::kDataLoss, "bytes do not match their digest");
}

Error ChunkReader::Diagnose(Mismatch mismatch) {
  const Job& job = *mismatch.job;
  if (!mismatch.page) {
    const auto read = ReadPageDigests({&mismatch.job, 1});
    if (!read) return read.error();
    // The stored digests make the root and the computed ones do not, so they differ somewhere.
    mismatch.page = static_cast<uint64_t>(std::ranges::mismatch(job.computed, job.stored).in1 -
                                          job.computed.begin());
  }
  const kv::Extent at = job.chunk.extents.At(*mismatch.page * kv::kPageBytes);
  return DamagedBytes(
      view_, job.fqn, at.segment_id,
      fmt::format("page {} of chunk {} does not match its digest; the bytes on disk "
                  "have changed",
                  *mismatch.page, FormatNumbers(job.chunk.box.offsets)),
      at.offset_bytes);
}

}  // namespace cairn::core::internal
