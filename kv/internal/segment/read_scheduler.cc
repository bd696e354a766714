// Planning, submission and completion of range reads.
//
//   1. Ranges are sorted by segment and offset, and handed out in batches of some MiB to workers:
//      threads that each keep a queue of requests in flight. A worker finishes the batches that it
//      took, so that copies, page faults of new targets and the caller's digests use as many cores.
//   2. Neighbours become one request of at most one block, if they are small and the gap between
//      them is, too; longer ranges are split. Requests begin and end at multiples of 4 KiB.
//   3. In a file, a request whose bytes are in the page cache is read through it, any other with
//      O_DIRECT.
//   4. Requests read into a block of the pool, from which the bytes are copied; or directly into
//      the target, if they are for one range only and its alignment allows that.
//   5. When the last part of a range has been read, the callback is called.
//   6. Finish decides what follows a request that failed: an error, which ends the call. A retry
//      would submit the request of the completion to the queue again there, before FinishOne
//      reuses its slot.

#include "kv/internal/segment/read_scheduler.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kv/div.h"
#include "kv/internal/io/block_io.h"
#include "kv/internal/io/fault_point.h"
#include "kv/internal/io/file.h"
#include "kv/mutex.h"
#include "kv/options.h"
#include "kv/read_range.h"
#include "kv/thread_annotations.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMaxFileGapBytes = 4096;
// Ranges of files of at least this size are separate requests: they gain nothing from their
// neighbours, and alone they may be read directly into their target.
constexpr uint64_t kLargeFileRangeBytes = 512 << 10;
// Ranges of at least this size are read from the page cache directly into their target, if it has
// them: a copy from a block would cost more than a request.
constexpr uint64_t kMinDirectRangeBytes = 16 << 10;
// What a worker takes at once. Small enough that all workers end at about the same time, large
// enough that requests are sequential; the bytes of a batch are still in the cache when they are
// digested. At least as many requests of objects as a batch of them has.
constexpr uint64_t kBatchBytes = 4 << 20;
constexpr uint64_t kObjectBatchRequests = 4;
constexpr uint64_t kMinWorkerBytes = 4 << 20;  // less work is not worth a thread
// Reads of at most this size use small blocks of their own instead of the pool's: the first access
// to a large block costs milliseconds.
constexpr uint64_t kSmallReadBytes = 128 << 10;

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
  std::byte* block = nullptr;  // null: the target is that of the only part
  std::shared_ptr<const SegmentFile> file;
  std::vector<RangePart> parts;
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
  return found.cached * 4096 >= end_bytes - begin_bytes;
}

/// The ranges in the order of the files, handed out in batches. Threads: safe.
class BatchQueue {
 public:
  BatchQueue(std::span<const ReadRange> ranges, uint64_t batch_bytes)
      : ranges_(ranges), batch_bytes_(batch_bytes), order_(ranges.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::ranges::sort(order_, [&](size_t a, size_t b) {
      return std::tie(ranges[a].segment_id, ranges[a].offset_bytes) <
             std::tie(ranges[b].segment_id, ranges[b].offset_bytes);
    });
  }

  /// Returns the indices of the next ranges; none at the end or after Stop.
  std::span<const size_t> Take() {
    const MutexLock lock(mutex_);
    const size_t begin = next_;
    for (uint64_t bytes = 0; next_ < order_.size() && bytes < batch_bytes_; ++next_) {
      bytes += ranges_[order_[next_]].length_bytes();
    }
    return std::span(order_).subspan(begin, next_ - begin);
  }
  /// Makes the other workers stop after an error.
  void Stop() {
    const MutexLock lock(mutex_);
    next_ = order_.size();
  }

 private:
  const std::span<const ReadRange> ranges_;
  const uint64_t batch_bytes_;
  std::vector<size_t> order_;
  Mutex mutex_;
  size_t next_ CAIRN_GUARDED_BY(mutex_) = 0;  // in order_
};

/// What the workers of one call of ReadRanges have in common. Everything outlives them.
struct SharedRead {
  std::span<const ReadRange> ranges;
  BatchQueue& batches;
  const IoOptions& options;
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
    while (queue_ && queue_->in_flight() > 0) {
      auto completion = queue_->Wait();
      if (!completion) break;
      ReturnBlock(requests_[completion->request.tag]);
    }
  }

  /// Returns the number of bytes that were read from storage.
  Result<uint64_t> Run() {
    Storage& storage = read_.source.storage;
    if (storage.local_files() != nullptr) {
      queue_ = MakeFileQueue(read_.options.uring, read_.queue_depth);
    } else {
      CAIRN_TRY_ASSIGN(queue_, storage.MakeQueue(read_.queue_depth));
    }
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
      while (next_ < batch_.size() && read_.ranges[batch_[next_]].length_bytes() == progress_) {
        // An empty range needs no request.
        if (progress_ == 0) CAIRN_TRY(read_.arrived(batch_[next_], {}));
        ++next_;
        progress_ = 0;
      }
      if (next_ < batch_.size()) return true;
      batch_ = read_.batches.Take();
      next_ = 0;
      if (batch_.empty()) return false;
      for (const size_t index : batch_) missing_bytes_[index] = read_.ranges[index].length_bytes();
    }
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

  /// Adds to `request` as many parts as fit into a block, and moves past them.
  Result<void> Plan(Request& request) {
    const ReadRange& first = read_.ranges[batch_[next_]];
    request.parts.clear();
    request.known_cached = false;
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
    while (next_ < batch_.size()) {
      const size_t index = batch_[next_];
      const ReadRange& range = read_.ranges[index];
      const uint64_t at = range.offset_bytes + progress_;
      // A range that overlaps a longer one before it may begin before this request.
      if (range.segment_id != segment_id || at < request.begin_bytes || at >= limit ||
          at > used_end + read_.max_gap_bytes || range.length_bytes() == 0) {
        break;
      }
      const bool lent = range.target.empty();
      const uint64_t length = std::min(range.length_bytes() - progress_, limit - at);
      bool alone = !lent && range.target.size() >= read_.large_range_bytes;
      if (!request.parts.empty() && alone) break;
      if (request.parts.empty() && !lent && !alone && length >= kMinDirectRangeBytes) {
        alone = IsCached(*file_, request.begin_bytes, RoundUp(at + length, kDirectAlignBytes));
        request.known_cached = alone;
      }
      if (lent && length < range.lent_bytes) break;  // it begins the next request
      request.parts.push_back({.range = index,
                               .offset_bytes = at,
                               .target = lent ? nullptr : range.target.data() + progress_,
                               .length_bytes = length});
      used_end = std::max(used_end, at + length);
      progress_ += length;
      if (progress_ < range.length_bytes()) break;  // the block is full
      ++next_;
      progress_ = 0;
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
    if (request.parts.size() == 1 && CanReadDirectly(request, cached)) {
      const RangePart& part = request.parts.front();
      io.data = part.target;
      io.offset_bytes = part.offset_bytes;
      io.length_bytes = part.length_bytes;
      request.begin_bytes = part.offset_bytes;
      request.end_bytes = part.offset_bytes + part.length_bytes;
      ReturnBlock(request);
    }
    read_bytes_ += io.length_bytes;
    return queue_->Submit(io);
  }

  static bool CanReadDirectly(const Request& request, bool cached) {
    const RangePart& part = request.parts.front();
    if (cached || request.file->is_object || part.target == nullptr) return part.target != nullptr;
    const auto address = reinterpret_cast<uintptr_t>(part.target);
    return address % request.file->direct.memory_align_bytes() == 0 &&
           (part.offset_bytes | part.length_bytes) % kDirectAlignBytes == 0;
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
    int error_number = completion.error_number;
    if (const int fault = FaultPoint("segment.read")) error_number = fault;
    const std::string& path = request.file->path;
    if (completion.error) return Fail(*completion.error);
    if (error_number != 0) {
      Error error = SystemError(error_number, "cannot read the segment", path);
      // EIO from a disk is a damaged medium; other errors may be temporary.
      if (error_number == EIO) error.code = ErrorCode::kDataLoss;
      return Fail(std::move(error).WithOffset(completion.request.offset_bytes));
    }
    const uint64_t have_end = completion.request.offset_bytes + completion.done_bytes;
    for (const RangePart& part : request.parts) {
      if (part.offset_bytes + part.length_bytes > have_end) {
        return Fail(Error{.code = ErrorCode::kDataLoss,
                          .message = fmt::format(
                              "the segment ends at {}, before the end of the payload", have_end),
                          .file = path,
                          .offset_bytes = part.offset_bytes});
      }
      const std::byte* const in_block = request.block + (part.offset_bytes - request.begin_bytes);
      if (part.target == nullptr) {
        missing_bytes_.erase(part.range);
        CAIRN_TRY(read_.arrived(part.range, {in_block, part.length_bytes}));
        continue;
      }
      if (request.block != nullptr) std::memcpy(part.target, in_block, part.length_bytes);
      const auto missing = missing_bytes_.find(part.range);
      missing->second -= part.length_bytes;
      if (missing->second > 0) continue;
      missing_bytes_.erase(missing);
      CAIRN_TRY(read_.arrived(part.range, read_.ranges[part.range].target));
    }
    return {};
  }

  void ReturnBlock(Request& request) {
    if (request.block != nullptr) read_.pool.Give(request.block);
    request.block = nullptr;
  }

  const SharedRead& read_;

  std::span<const size_t> batch_;                       // being read: indices of ranges
  size_t next_ = 0;                                     // in batch_
  uint64_t progress_ = 0;                               // bytes of that range already requested
  std::unordered_map<size_t, uint64_t> missing_bytes_;  // by range, of those in flight
  uint64_t read_bytes_ = 0;
  std::shared_ptr<const SegmentFile> file_;  // of the previous request, nearly always of the next
  uint64_t file_id_ = 0;
  std::vector<Request> requests_;  // by slot
  std::vector<size_t> idle_;       // free slots
  std::unique_ptr<IoQueue> queue_;
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
  BatchQueue batches(
      ranges,
      is_file ? kBatchBytes : std::max(kBatchBytes, kObjectBatchRequests * blocks.block_bytes()));
  const SharedRead shared{
      .ranges = ranges,
      .batches = batches,
      .options = options,
      .queue_depth = queue_depth,
      .pool = blocks,
      .source = source,
      .max_gap_bytes = is_file ? kMaxFileGapBytes : source.storage.transfer_sizes().max_gap_bytes,
      .large_range_bytes = is_file ? kLargeFileRangeBytes : blocks.block_bytes(),
      .arrived = arrived};
  const auto read = [&]() -> Result<uint64_t> {
    auto bytes = ReadWorker(shared).Run();
    if (!bytes) batches.Stop();
    return bytes;
  };
  std::vector<Result<uint64_t>> results(worker_count, uint64_t{0});
  {
    std::vector<std::jthread> others;
    for (uint32_t worker = 1; worker < worker_count; ++worker) {
      others.emplace_back([&, worker] { results[worker] = read(); });
    }
    results[0] = read();
  }
  uint64_t bytes = 0;
  for (Result<uint64_t>& result : results) {
    if (!result) return result;
    bytes += *result;
  }
  return bytes;
}

}  // namespace cairn::kv::internal
