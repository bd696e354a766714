// Planning, submission and completion of range reads.
//
//   1. Ranges are sorted by segment and offset, and handed out in batches to workers: threads that
//      each keep a queue of requests in flight. A worker finishes the batches that it took, so that
//      copies, page faults of new targets and the caller's digests use as many cores. A batch of a
//      file is some MiB of complete ranges. A batch of an object is what ranges need of one window:
//      windows begin at multiples of the length of a block, as the parts of uploads do, because
//      servers store these separately and read them more cheaply than the end of one and the
//      beginning of the next.
//   2. Neighbours become one request of at most one block, if they are small and the gap between
//      them is, too; longer ranges are split. Requests begin and end at multiples of 4 KiB, unless
//      they read directly into several targets.
//   3. In a file, a request whose bytes are in the page cache is read through it, any other with
//      O_DIRECT.
//   4. Requests read into a block of the pool, from which the bytes are copied; or directly into
//      the target, if they are for one range only and its alignment allows that; or directly into
//      several targets, if these are adjacent and the bytes are in the page cache, or if the queue
//      can do this.
//   5. When the last part of a range has been read, by whichever worker, the callback is called.
//   6. Finish decides what follows a request that failed: an error, which ends the call. A retry
//      would submit the request of the completion to the queue again there, before FinishOne
//      reuses its slot.

#include "kv/segment/internal/read_scheduler.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/div.h"
#include "kv/base/mutex.h"
#include "kv/io/internal/file.h"
#include "kv/io/worker_pool.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMaxFileGapBytes = 4096;
// Ranges of files of at least this size are separate requests: they gain nothing from their
// neighbours, and alone they may be read directly into their target.
constexpr uint64_t kLargeFileRangeBytes = 512 << 10;
// Ranges of at least this size are read from the page cache directly into their target, if it has
// them: a copy from a block would cost more than a request.
constexpr uint64_t kMinDirectRangeBytes = 16 << 10;
// Such ranges whose targets are adjacent, too, are one request of at most this length: it is copied
// while what was read before is still in the cache.
constexpr uint64_t kMaxDirectRunBytes = 256 << 10;
constexpr uint64_t kMinWorkerBytes = 4 << 20;  // less work is not worth a thread
// Reads of at most this size use small blocks of their own instead of the pool's: the first access
// to a large block costs milliseconds.
constexpr uint64_t kSmallReadBytes = 128 << 10;

// Size of a batch of complete ranges. Small enough that all workers end at about the same time,
// large enough that requests are sequential; the bytes of a batch are still in the cache when they
// are digested.
constexpr uint64_t kBatchBytes = 4 << 20;

// Returns whether the batch of [begin, end) continues with this range. A range without a target
// that ends later begins the next batch. So does a range that is inside a longer one before it, and
// begins before the window.
bool IsInWindow(const ReadRange& range, uint64_t begin, uint64_t end) {
  const uint64_t needed_bytes = range.target.empty() ? range.lent_bytes : 1;
  return range.offset_bytes >= begin && range.offset_bytes + needed_bytes <= end;
}

/// Ranges in the order of their segments and offsets. The first and the last one may be in the
/// batch in part.
struct ReadBatch {
  std::span<const size_t> ranges;  // indices
  uint64_t begin_bytes = 0;        // in the first range
  uint64_t end_bytes = 0;          // in the last range
};

/// Divides ranges into batches. Every byte of every range is in exactly one batch.
/// Threads: all members may run on many threads at once.
class ReadBatches {
 public:
  /// With `window_bytes`, a batch is what ranges of one segment need between two multiples of it;
  /// ranges without a target are not divided, and may end after the window in which they begin.
  /// Without (0), a batch consists of complete ranges of some MiB. `ranges` must outlive this.
  ReadBatches(std::span<const ReadRange> ranges, uint64_t window_bytes)
      : ranges_(ranges), window_bytes_(window_bytes), order_(ranges.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    const auto is_before = [&](size_t a, size_t b) {
      return std::tie(ranges[a].segment_id, ranges[a].offset_bytes) <
             std::tie(ranges[b].segment_id, ranges[b].offset_bytes);
    };
    // Mostly they are in order, and to find this is much cheaper than to sort them again.
    if (!std::ranges::is_sorted(order_, is_before)) std::ranges::sort(order_, is_before);
  }

  /// Returns the next batch; one without ranges at the end and after Stop.
  ReadBatch Take() {
    const MutexLock lock(mutex_);
    if (next_ == order_.size()) return {};
    return window_bytes_ == 0 ? TakeRanges() : TakeWindow();
  }
  /// Makes the other workers stop after an error.
  void Stop() {
    const MutexLock lock(mutex_);
    next_ = order_.size();
  }

 private:
  ReadBatch TakeRanges() CAIRN_REQUIRES(mutex_) {
    const size_t begin = next_;
    for (uint64_t bytes = 0; next_ < order_.size() && bytes < kBatchBytes; ++next_) {
      bytes += ranges_[order_[next_]].length_bytes();
    }
    return {.ranges = std::span(order_).subspan(begin, next_ - begin),
            .end_bytes = ranges_[order_[next_ - 1]].length_bytes()};
  }

  ReadBatch TakeWindow() CAIRN_REQUIRES(mutex_) {
    const size_t begin = next_;
    const ReadRange& first = ranges_[order_[begin]];
    const uint64_t window_begin = RoundDown(first.offset_bytes + taken_bytes_, window_bytes_);
    const uint64_t window_end = window_begin + window_bytes_;
    ReadBatch batch{.begin_bytes = taken_bytes_};
    do {
      const ReadRange& range = ranges_[order_[next_]];
      const bool is_divided =
          !range.target.empty() && range.offset_bytes + range.target.size() > window_end;
      batch.end_bytes = is_divided ? window_end - range.offset_bytes : range.length_bytes();
      batch.ranges = std::span(order_).subspan(begin, next_ + 1 - begin);
      taken_bytes_ = is_divided ? batch.end_bytes : 0;
      if (is_divided) return batch;
      ++next_;
    } while (next_ < order_.size() && ranges_[order_[next_]].segment_id == first.segment_id &&
             IsInWindow(ranges_[order_[next_]], window_begin, window_end));
    return batch;
  }

  const std::span<const ReadRange> ranges_;
  const uint64_t window_bytes_;
  std::vector<size_t> order_;
  Mutex mutex_;
  size_t next_ CAIRN_GUARDED_BY(mutex_) = 0;           // in order_
  uint64_t taken_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;  // taken from that range
};

/// The part of a range that one request reads.
struct RangePart {
  size_t range = 0;
  uint64_t offset_bytes = 0;  // in the file
  std::byte* target = nullptr;
  uint64_t length_bytes = 0;
};

struct Request {
  uint64_t begin_bytes = 0;  // in the file
  uint64_t end_bytes = 0;
  bool known_cached = false;   // all of it is in the page cache; if false, that is not known yet
  bool is_run = false;         // the parts are adjacent in the file and in memory
  std::byte* block = nullptr;  // null: the targets of the only part, or of `slices`
  std::shared_ptr<const SegmentFile> file;
  std::vector<RangePart> parts;
  std::vector<IoSlice> slices;  // if the queue scatters: the targets of the parts, and the gaps
};

/// Returns whether all pages of [begin, end) are in the page cache, or the file is not open for
/// direct I/O. Objects are never in it. Before Linux 6.5 the state of the cache is unknown, and the
/// result is false.
bool IsCached(const SegmentFile& file, uint64_t begin_bytes, uint64_t end_bytes) {
  if (file.is_object) return false;
  if (!file.direct.direct()) return true;
  struct {
    uint64_t offset, length;
  } range{begin_bytes, end_bytes - begin_bytes};  // both are multiples of 4 KiB
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } found{};
  constexpr long kCachestat = 451;
  if (::syscall(kCachestat, file.buffered.fd(), &range, &found, 0) != 0) return false;
  static const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return found.cached >= DivCeil(end_bytes, page_bytes) - begin_bytes / page_bytes;
}

/// The state that the workers of one call of ReadRanges share. All members outlive the workers.
struct SharedRead {
  std::span<const ReadRange> ranges;
  std::span<std::atomic<uint64_t>> missing_bytes;  // by range: not read yet
  ReadBatches& batches;
  uint32_t queue_depth = 0;
  BlockPool& pool;
  const SegmentSource& source;
  uint64_t max_gap_bytes = 0;
  uint64_t large_range_bytes = 0;  // ranges of at least this size are separate requests
  const RangeCallback& arrived;
};

/// Reads batches of ranges until there are none left. Threads: one.
class ReadWorker {
 public:
  explicit ReadWorker(const SharedRead& read) : read_(read) {}

  ~ReadWorker() {
    bool waited = true;
    while (waited && queue_ && queue_->in_flight() > 0) waited = queue_->Wait().has_value();
    // Also of requests that an error or an exception has kept from being submitted.
    for (size_t i = 0; waited && i < requests_.size(); ++i) ReturnBlock(requests_[i]);
    read_.source.queues.Give(std::move(queue_));
  }

  /// Returns the number of bytes that were read from storage.
  Result<uint64_t> Run() {
    CAIRN_TRY_ASSIGN(
        queue_, TakeSegmentQueue(read_.source.storage, read_.source.queues, read_.queue_depth));
    can_scatter_ = queue_->can_scatter();
    requests_.resize(read_.queue_depth);
    for (size_t i = requests_.size(); i > 0; --i) idle_.push_back(i - 1);
    while (true) {
      CAIRN_TRY(SubmitMany());
      if (queue_->in_flight() == 0) break;
      CAIRN_TRY(FinishOne());
    }
    return read_bytes_;
  }

 private:
  /// Moves to the next range with bytes that were not requested yet. Returns false if there is
  /// none.
  Result<bool> Advance() {
    while (true) {
      while (next_ < batch_.ranges.size() && EndOfNext() == progress_) {
        const size_t index = batch_.ranges[next_];
        // An empty range needs no request.
        if (read_.ranges[index].length_bytes() == 0) CAIRN_TRY(read_.arrived(index, {}));
        MoveToNext();
      }
      if (next_ < batch_.ranges.size()) return true;
      batch_ = read_.batches.Take();
      next_ = 0;
      progress_ = batch_.begin_bytes;
      if (batch_.ranges.empty()) return false;
    }
  }

  /// Returns where the part of the next range ends that is in the batch.
  uint64_t EndOfNext() const {
    if (next_ + 1 == batch_.ranges.size()) return batch_.end_bytes;
    return read_.ranges[batch_.ranges[next_]].length_bytes();
  }

  void MoveToNext() {
    ++next_;
    progress_ = 0;
  }

  /// Submits requests while there are ranges and blocks and the queue is not full.
  Result<void> SubmitMany() {
    while (!idle_.empty()) {
      CAIRN_TRY_ASSIGN(const bool more, Advance());
      if (!more) return {};
      // Other threads may have all blocks. If this worker has reads in flight, it finishes those
      // and does not wait for a block.
      std::byte* block = read_.pool.TryTake();
      if (block == nullptr) {
        if (queue_->in_flight() > 0) return {};
        CAIRN_TRY_ASSIGN(block, read_.pool.Take());
      }
      const size_t slot = idle_.back();
      Request& request = requests_[slot];
      request.block = block;
      Result<void> submitted = Plan(request);
      if (submitted) submitted = Submit(request, slot);
      if (!submitted) {
        ReturnBlock(request);
        return submitted;
      }
      idle_.pop_back();
    }
    return {};
  }

  /// Returns whether `range`, of which nothing was requested yet, continues a run.
  static bool ContinuesRun(const Request& request, const ReadRange& range, uint64_t limit) {
    const RangePart& last = request.parts.back();
    const uint64_t end_bytes = range.offset_bytes + range.target.size();
    return range.target.data() == last.target + last.length_bytes &&
           range.offset_bytes == last.offset_bytes + last.length_bytes && end_bytes <= limit &&
           end_bytes <= request.begin_bytes + kMaxDirectRunBytes;
  }

  /// Adds to `request` as many parts as fit into a block, and moves past them.
  Result<void> Plan(Request& request) {
    const ReadRange& first = read_.ranges[batch_.ranges[next_]];
    request.parts.clear();
    request.slices.clear();
    request.known_cached = false;
    request.is_run = false;
    request.begin_bytes = RoundDown(first.offset_bytes + progress_, kDirectAlignBytes);
    request.end_bytes = request.begin_bytes;
    const uint64_t limit = request.begin_bytes + read_.pool.block_bytes();
    const uint64_t segment_id = first.segment_id;
    if (file_ == nullptr || file_id_ != segment_id) {
      CAIRN_TRY_ASSIGN(file_, read_.source.open(segment_id));
      file_id_ = segment_id;
    }
    request.file = file_;
    uint64_t used_end = first.offset_bytes + progress_;
    while (next_ < batch_.ranges.size()) {
      const size_t index = batch_.ranges[next_];
      const ReadRange& range = read_.ranges[index];
      const uint64_t at = range.offset_bytes + progress_;
      // A range that overlaps a longer one before it may begin before this request.
      if (range.segment_id != segment_id || at < request.begin_bytes || at >= limit ||
          at > used_end + read_.max_gap_bytes || range.length_bytes() == 0) {
        break;
      }
      const bool lent = range.target.empty();
      const uint64_t length = std::min(EndOfNext() - progress_, limit - at);
      const bool alone = !lent && range.target.size() >= read_.large_range_bytes && !can_scatter_;
      if (!request.parts.empty() && alone) break;
      if (request.is_run && !ContinuesRun(request, range, limit)) break;
      if (request.parts.empty() && !lent && !alone && length >= kMinDirectRangeBytes) {
        request.is_run =
            IsCached(*file_, request.begin_bytes, RoundUp(at + length, kDirectAlignBytes));
      }
      if (lent && length < range.lent_bytes) break;  // it begins the next request
      request.known_cached = request.is_run && request.parts.empty();
      request.parts.push_back({.range = index,
                               .offset_bytes = at,
                               .target = lent ? nullptr : range.target.data() + progress_,
                               .length_bytes = length});
      used_end = std::max(used_end, at + length);
      progress_ += length;
      if (progress_ < EndOfNext()) break;  // the block is full
      MoveToNext();
      if (alone) break;
    }
    request.end_bytes = RoundUp(used_end, kDirectAlignBytes);
    return {};
  }

  Result<void> Submit(Request& request, size_t slot) {
    const bool cached =
        request.known_cached || IsCached(*request.file, request.begin_bytes, request.end_bytes);
    IoRequest io{.data = request.block,
                 .length_bytes = request.end_bytes - request.begin_bytes,
                 .offset_bytes = request.begin_bytes,
                 .tag = slot};
    if (request.file->is_object) {
      io.object = request.file->name;
    } else {
      io.fd = cached ? request.file->buffered.fd() : request.file->direct.fd();
    }
    if ((request.parts.size() == 1 || request.is_run) && CanReadDirectly(request, cached)) {
      const RangePart& last = request.parts.back();
      request.begin_bytes = request.parts.front().offset_bytes;
      request.end_bytes = last.offset_bytes + last.length_bytes;
      io.data = request.parts.front().target;
      io.offset_bytes = request.begin_bytes;
      io.length_bytes = request.end_bytes - request.begin_bytes;
      ReturnBlock(request);
    } else if (can_scatter_ && AddSlices(request)) {
      io.data = nullptr;
      io.slices = request.slices;
      io.offset_bytes = request.begin_bytes = request.parts.front().offset_bytes;
      io.length_bytes = request.end_bytes - request.begin_bytes;
      ReturnBlock(request);
    }
    read_bytes_ += io.length_bytes;
    return queue_->Submit(io);
  }

  /// Returns whether all parts, which are adjacent, can be read directly into their targets.
  static bool CanReadDirectly(const Request& request, bool cached) {
    const RangePart& part = request.parts.front();
    if (!cached && request.parts.size() > 1) return false;
    if (cached || request.file->is_object || part.target == nullptr) return part.target != nullptr;
    const auto address = reinterpret_cast<uintptr_t>(part.target);
    return address % request.file->direct.memory_align_bytes() == 0 &&
           (part.offset_bytes | part.length_bytes) % kDirectAlignBytes == 0;
  }

  /// Describes the targets of all parts by slices, and ends the request with the last part. Returns
  /// false if parts overlap or have no target.
  static bool AddSlices(Request& request) {
    uint64_t at = request.parts.front().offset_bytes;
    for (const RangePart& part : request.parts) {
      if (part.target == nullptr || part.offset_bytes < at) return false;
      if (part.offset_bytes > at) {
        request.slices.push_back({.data = nullptr, .length_bytes = part.offset_bytes - at});
      }
      request.slices.push_back({.data = part.target, .length_bytes = part.length_bytes});
      at = part.offset_bytes + part.length_bytes;
    }
    request.end_bytes = at;
    return true;
  }

  Result<void> FinishOne() {
    CAIRN_TRY_ASSIGN(const IoCompletion completion, queue_->Wait());
    const size_t slot = completion.request.tag;
    idle_.push_back(slot);
    Result<void> finished = Finish(requests_[slot], completion);
    ReturnBlock(requests_[slot]);
    return finished;
  }

  Result<void> Finish(Request& request, const IoCompletion& completion) {
    const std::string& path = request.file->path;
    CAIRN_TRY(CheckRead(completion, path));
    const uint64_t have_end = completion.request.offset_bytes + completion.done_bytes;
    for (const RangePart& part : request.parts) {
      if (part.offset_bytes + part.length_bytes > have_end) {
        return Fail(ErrorCode::kDataLoss,
                    fmt::format("the segment ends at {}, before the end of the payload", have_end),
                    path, part.offset_bytes);
      }
      const std::byte* const in_block = request.block + (part.offset_bytes - request.begin_bytes);
      if (part.target == nullptr) {
        CAIRN_TRY(read_.arrived(part.range, {in_block, part.length_bytes}));
        continue;
      }
      if (request.block != nullptr) std::memcpy(part.target, in_block, part.length_bytes);
      // The worker that reads the last bytes sees the bytes of all others.
      std::atomic<uint64_t>& missing_bytes = read_.missing_bytes[part.range];
      if (missing_bytes.fetch_sub(part.length_bytes) != part.length_bytes) continue;
      CAIRN_TRY(read_.arrived(part.range, read_.ranges[part.range].target));
    }
    return {};
  }

  void ReturnBlock(Request& request) {
    if (request.block != nullptr) read_.pool.Give(request.block);
    request.block = nullptr;
  }

  const SharedRead& read_;

  ReadBatch batch_;        // being read
  size_t next_ = 0;        // in batch_
  uint64_t progress_ = 0;  // bytes of that range already requested
  uint64_t read_bytes_ = 0;
  std::shared_ptr<const SegmentFile> file_;  // the previous request's, nearly always the next one's
  uint64_t file_id_ = 0;
  std::vector<Request> requests_;  // by slot
  std::vector<size_t> idle_;       // free slots
  std::unique_ptr<IoQueue> queue_;
  bool can_scatter_ = false;  // the queue can
};

}  // namespace

Result<uint64_t> ReadRanges(std::span<const ReadRange> ranges, const IoOptions& options,
                            uint32_t threads, BlockPool& pool, const SegmentSource& source,
                            const RangeCallback& arrived) {
  uint64_t total_bytes = 0;
  bool lends = false;
  for (const ReadRange& range : ranges) {
    CAIRN_CHECK(range.lent_bytes <= ReadRange::kMaxLentBytes);
    total_bytes += range.length_bytes();
    lends = lends || range.target.empty();
  }
  const auto worker_count = static_cast<uint32_t>(
      std::clamp<uint64_t>(total_bytes / kMinWorkerBytes, 1, std::max(threads, 1u)));
  // Each worker may have the full depth in flight: the number of blocks bounds the memory, and
  // reads directly into their target need no block.
  const uint32_t queue_depth = std::max(2u, options.queue_depth);
  // A lent range is in one block, wherever in its first 4 KiB it begins.
  constexpr uint64_t kLentBlockBytes = ReadRange::kMaxLentBytes + kDirectAlignBytes;
  const bool small = total_bytes <= kSmallReadBytes;
  BlockPool own_pool(small ? kSmallReadBytes + kDirectAlignBytes : kLentBlockBytes, queue_depth);
  const bool own = small || (lends && pool.block_bytes() < kLentBlockBytes);
  BlockPool& blocks = own ? own_pool : pool;
  const bool is_file = source.storage.local_files() != nullptr;
  ReadBatches batches(ranges, is_file ? 0 : std::max(pool.block_bytes(), blocks.block_bytes()));
  std::vector<std::atomic<uint64_t>> missing_bytes(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) missing_bytes[i] = ranges[i].length_bytes();
  const SharedRead shared{
      .ranges = ranges,
      .missing_bytes = missing_bytes,
      .batches = batches,
      .queue_depth = queue_depth,
      .pool = blocks,
      .source = source,
      .max_gap_bytes = is_file ? kMaxFileGapBytes : source.storage.transfer_sizes().max_gap_bytes,
      .large_range_bytes = is_file ? kLargeFileRangeBytes : blocks.block_bytes(),
      .arrived = arrived};
  std::atomic<uint64_t> read_bytes = 0;
  const auto read = [&](size_t) -> Result<void> {
    const auto bytes = CatchExhaustion("reading", [&] { return ReadWorker(shared).Run(); });
    if (bytes) {
      read_bytes += *bytes;
      return {};
    }
    batches.Stop();
    return std::unexpected(bytes.error());
  };
  CAIRN_TRY(RunOnThreads(worker_count, "reading", read));
  return read_bytes;
}

Result<void> ReadZeros(std::span<const ReadRange> ranges, std::span<const size_t> indices,
                       uint32_t threads, const RangeCallback& arrived) {
  uint64_t lent_bytes = 0;
  for (const size_t i : indices) lent_bytes = std::max(lent_bytes, ranges[i].lent_bytes);
  const std::vector<std::byte> zeros(lent_bytes);
  const auto read = [&](size_t i) {
    const ReadRange& range = ranges[indices[i]];
    std::ranges::fill(range.target, std::byte{0});
    return arrived(indices[i],
                   range.target.empty() ? std::span(zeros).first(range.lent_bytes) : range.target);
  };
  return RunOnThreads(indices.size(), "zeros", read, threads);
}

}  // namespace cairn::kv::internal
