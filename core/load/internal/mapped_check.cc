#include "core/load/internal/mapped_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/base/internal/progress_meter.h"
#include "core/base/progress.h"
#include "kv/base/mapping.h"
#include "kv/base/mutex.h"
#include "kv/io/worker_pool.h"

namespace cairn::core::internal {
namespace {

// How far reading is ahead of the digests, where pages are read one by one.
constexpr uint64_t kAheadBytes = uint64_t{64} << 20;
// Small chunks that are close to each other in the file are checked as one item of at most this
// size.
constexpr uint64_t kStretchBytes = uint64_t{4} << 20;
// The largest gap between chunks of one item.
constexpr uint64_t kGapBytes = 64 * 1024;
// Items that follow each other are read in large pages if they are at least this long together.
constexpr uint64_t kRunBytes = uint64_t{4} << 20;
// A thread waits while its item is read, so this many items are read at the same time.
constexpr uint32_t kMinThreads = 4;

// Chunks that are close to each other in one mapping.
struct Stretch {
  std::span<const MappedChunk> chunks;
  const kv::Mapping* mapping = nullptr;
  uint64_t begin_bytes = 0;  // in the mapping
  uint64_t end_bytes = 0;
  uint64_t before_bytes = 0;  // total length of the stretches before this one
  bool has_large_pages = false;

  uint64_t length_bytes() const { return end_bytes - begin_bytes; }
};

// Requires chunks in file order.
std::vector<Stretch> JoinChunks(std::span<const MappedChunk> chunks) {
  std::vector<Stretch> stretches;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const kv::Extent& extent = chunks[i].extent();
    const uint64_t end_bytes = extent.offset_bytes + extent.length_bytes;
    Stretch* const last = stretches.empty() ? nullptr : &stretches.back();
    if (last != nullptr && last->mapping == chunks[i].mapping &&
        extent.offset_bytes <= last->end_bytes + kGapBytes &&
        end_bytes - last->begin_bytes <= kStretchBytes) {
      last->chunks = {last->chunks.data(), last->chunks.size() + 1};
      last->end_bytes = std::max(last->end_bytes, end_bytes);
      continue;
    }
    stretches.push_back(
        {.chunks = chunks.subspan(i, 1),
         .mapping = chunks[i].mapping,
         .begin_bytes = extent.offset_bytes,
         .end_bytes = end_bytes,
         .before_bytes = last != nullptr ? last->before_bytes + last->length_bytes() : 0});
  }
  return stretches;
}

// Sets large pages for long runs of stretches. The kernel caches them in large units, which later
// maps and reads use, too. MADV_WILLNEED would fill the cache with single pages: then a map of a
// cached file takes 6 times as long.
void UseLargePages(std::span<Stretch> stretches) {
  for (size_t first = 0; first < stretches.size();) {
    size_t end = first + 1;
    while (end < stretches.size() && stretches[end].mapping == stretches[first].mapping &&
           stretches[end].begin_bytes <= stretches[end - 1].end_bytes + kGapBytes) {
      ++end;
    }
    const uint64_t begin_bytes = stretches[first].begin_bytes;
    const uint64_t length_bytes = stretches[end - 1].end_bytes - begin_bytes;
    if (length_bytes >= kRunBytes &&
        stretches[first].mapping->UseLargePages(begin_bytes, length_bytes)) {
      for (size_t i = first; i < end; ++i) stretches[i].has_large_pages = true;
    }
    first = end;
  }
}

Result<void> CheckReadable(const StepView& view, const MappedChunk& mapped) {
  const kv::Extent& extent = mapped.extent();
  const auto readable = mapped.mapping->Populate(extent.offset_bytes, extent.length_bytes);
  if (readable) return {};
  return Fail(DamagedBytes(view, *mapped.fqn, extent.segment_id, readable.error().message,
                           extent.offset_bytes));
}

Result<void> CheckDigest(const StepView& view, const MappedChunk& mapped) {
  const kv::Extent& extent = mapped.extent();
  const auto bytes = mapped.mapping->bytes().subspan(extent.offset_bytes, extent.length_bytes);
  if (kv::PayloadDigest(bytes) == mapped.chunk->digest) return {};
  return Fail(DamagedBytes(view, *mapped.fqn, extent.segment_id,
                           fmt::format("chunk {} does not match its digest; the bytes on disk have "
                                       "changed",
                                       FormatNumbers(mapped.chunk->box.offsets)),
                           extent.offset_bytes));
}

// Threads: Check is safe.
class Checker {
 public:
  Checker(const StepView& view, std::span<const Stretch> stretches, ProgressMeter& meter)
      : view_(view), stretches_(stretches), meter_(meter), failed_(stretches.size()) {}

  void Check(size_t i) {
    if (i >= failed_) return;
    ReadAhead(stretches_[i].before_bytes + kAheadBytes);
    auto result = CheckChunks(stretches_[i]);
    if (result) result = meter_.Add(stretches_[i].length_bytes());
    if (!result) NoteFailure(i, std::move(result).error());
  }

  /// Returns the first error. Requires that all items are done.
  Result<void> result() && {
    const MutexLock lock(mutex_);
    if (failed_ < stretches_.size()) return Fail(std::move(error_));
    return {};
  }

 private:
  // Begins to read the stretches before `end_bytes`, each once. Stretches with large pages are read
  // by the threads that check them.
  void ReadAhead(uint64_t end_bytes) {
    size_t next = asked_;
    while (next < stretches_.size() && stretches_[next].before_bytes < end_bytes) {
      if (!asked_.compare_exchange_weak(next, next + 1)) continue;
      const Stretch& stretch = stretches_[next++];
      if (stretch.has_large_pages) continue;
      stretch.mapping->WillNeed(stretch.begin_bytes, stretch.length_bytes());
    }
  }

  Result<void> CheckChunks(const Stretch& stretch) {
    // One call for all chunks; if it fails, one call per chunk finds out which cannot be read.
    const auto all = stretch.mapping->Populate(stretch.begin_bytes, stretch.length_bytes());
    for (const MappedChunk& chunk : stretch.chunks) {
      if (!all) CAIRN_TRY(CheckReadable(view_, chunk));
      CAIRN_TRY(CheckDigest(view_, chunk));
    }
    return {};
  }

  // Items begin in order, so the first that fails is known when all that have begun are done.
  void NoteFailure(size_t i, Error error) {
    const MutexLock lock(mutex_);
    if (i >= failed_) return;
    failed_ = i;
    error_ = std::move(error);
  }

  const StepView& view_;
  const std::span<const Stretch> stretches_;
  ProgressMeter& meter_;
  std::atomic<size_t> asked_ = 0;  // stretches whose reading has begun
  // The first stretch that failed, or the number of stretches. Written under mutex_, and read
  // without it to skip stretches.
  std::atomic<size_t> failed_;
  Mutex mutex_;
  Error error_ CAIRN_GUARDED_BY(mutex_);  // error of failed_
};

}  // namespace

Result<void> CheckMapped(const StepView& view, std::vector<MappedChunk> chunks,
                         const Progress& progress) {
  std::ranges::sort(chunks, {}, [](const MappedChunk& chunk) {
    return std::pair(chunk.extent().segment_id, chunk.extent().offset_bytes);
  });
  std::vector<Stretch> stretches = JoinChunks(chunks);
  if (stretches.empty()) return {};
  UseLargePages(stretches);
  ProgressMeter meter(progress, stretches.back().before_bytes + stretches.back().length_bytes());
  Checker checker(view, stretches, meter);
  const size_t threads = kv::WorkerThreads(kMinThreads);
  kv::WorkerPool pool(std::min(threads, stretches.size()));
  pool.Run(stretches.size(), [&](size_t i, size_t) { checker.Check(i); });
  return std::move(checker).result();
}

}  // namespace cairn::core::internal
