// Planning, submitting and finishing of range reads.
//
//   1. Ranges are sorted by segment and offset.
//   2. Neighbours (gap of at most kMaxGapBytes) become one request of at most one block; longer
//   ranges
//      are split. Requests begin and end on 4 KiB.
//   3. A request whose bytes are in the page cache is read through it, any other past it.
//   4. Requests land in a block of the pool and are copied out, or go straight into the target
//   where
//      they serve one range only and alignment allows.
//   5. When the last piece of a range is there, the caller hears of it.

#include "kv/internal/range_reader.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <optional>

#include "kv/internal/fault_point.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMaxGapBytes = 4096;

/// Part of a range inside a request.
struct Piece {
  size_t range = 0;
  uint64_t offset_bytes = 0;  // in the file
  std::byte* target = nullptr;
  uint64_t length_bytes = 0;
};

struct Request {
  uint64_t begin_bytes = 0;  // in the file
  uint64_t end_bytes = 0;
  std::byte* block = nullptr;  // null: straight into the only piece's target
  std::shared_ptr<const SegmentFile> file;
  std::vector<Piece> pieces;
};

/// True if all pages of [begin, end) are in the page cache. Linux 6.5; elsewhere false.
bool IsCached(const File& file, uint64_t begin_bytes, uint64_t end_bytes) {
  struct {
    uint64_t offset, length;
  } range{begin_bytes, end_bytes - begin_bytes};  // both on 4 KiB
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } found{};
  constexpr long kCachestat = 451;
  if (::syscall(kCachestat, file.fd(), &range, &found, 0) != 0) return false;
  return found.cached * 4096 >= end_bytes - begin_bytes;
}

class Reader {
 public:
  Reader(std::span<const ReadRange> ranges, const IoOptions& options, BlockPool& pool,
         const std::function<Result<std::shared_ptr<const SegmentFile>>(uint64_t)>& open,
         const std::function<Result<void>(size_t)>& arrived)
      : ranges_(ranges),
        options_(options),
        pool_(pool),
        open_(open),
        arrived_(arrived),
        order_(ranges.size()),
        missing_bytes_(ranges.size()) {}

  ~Reader() {
    while (queue_ && queue_->in_flight() > 0) {
      auto completion = queue_->Wait();
      if (!completion) break;
      GiveBack(requests_[completion->request.tag]);
    }
  }

  Result<uint64_t> Run() {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::ranges::sort(order_, [this](size_t a, size_t b) {
      return std::tie(ranges_[a].segment_id, ranges_[a].offset_bytes) <
             std::tie(ranges_[b].segment_id, ranges_[b].offset_bytes);
    });
    for (size_t i = 0; i < ranges_.size(); ++i) {
      missing_bytes_[i] = ranges_[i].target.size();
      if (missing_bytes_[i] == 0) CAIRN_TRY(arrived_(i));
    }
    CAIRN_TRY_ASSIGN(queue_, IoQueue::Make(options_.uring, options_.queue_depth));
    requests_.resize(options_.queue_depth);
    for (size_t i = requests_.size(); i > 0; --i) idle_.push_back(i - 1);
    while (true) {
      CAIRN_TRY(SubmitMany());
      if (queue_->in_flight() == 0) break;
      CAIRN_TRY(FinishOne());
    }
    return read_bytes_;
  }

 private:
  /// Keeps the queue full as long as ranges and blocks are left.
  Result<void> SubmitMany() {
    while (!idle_.empty()) {
      while (next_ < order_.size() && ranges_[order_[next_]].target.size() == progress_) {
        ++next_;
        progress_ = 0;
      }
      if (next_ == order_.size()) return {};
      // A block is needed only now, and may be somebody else's for a while; with own reads in
      // flight it is better to go on with those.
      std::byte* block = pool_.TryTake();
      if (block == nullptr) {
        if (queue_->in_flight() > 0) return {};
        CAIRN_TRY_ASSIGN(block, pool_.Take());
      }
      const size_t slot = idle_.back();
      Request& request = requests_[slot];
      request.block = block;
      Result<void> submitted = Plan(request);
      if (submitted) submitted = Submit(request, slot);
      if (!submitted) {
        GiveBack(request);
        return submitted;
      }
      idle_.pop_back();
    }
    return {};
  }

  /// Fills `request` with as many pieces as fit into a block, and moves on behind them.
  Result<void> Plan(Request& request) {
    const ReadRange& first = ranges_[order_[next_]];
    request.pieces.clear();
    request.begin_bytes = RoundDown(first.offset_bytes + progress_, kDirectAlignBytes);
    request.end_bytes = request.begin_bytes;
    const uint64_t limit = request.begin_bytes + pool_.block_bytes();
    const uint64_t segment_id = first.segment_id;
    CAIRN_TRY_ASSIGN(request.file, open_(segment_id));
    uint64_t used_end = first.offset_bytes + progress_;
    while (next_ < order_.size()) {
      const size_t index = order_[next_];
      const ReadRange& range = ranges_[index];
      const uint64_t at = range.offset_bytes + progress_;
      // A range that overlaps a longer one before it may begin before this request does.
      if (range.segment_id != segment_id || at < request.begin_bytes || at >= limit ||
          at > used_end + kMaxGapBytes) {
        break;
      }
      const uint64_t length = std::min(range.target.size() - progress_, limit - at);
      if (length > 0) {
        request.pieces.push_back({.range = index,
                                  .offset_bytes = at,
                                  .target = range.target.data() + progress_,
                                  .length_bytes = length});
      }
      used_end = std::max(used_end, at + length);
      progress_ += length;
      if (progress_ < range.target.size()) break;  // the block is full
      ++next_;
      progress_ = 0;
    }
    request.end_bytes = RoundUp(used_end, kDirectAlignBytes);
    return {};
  }

  Result<void> Submit(Request& request, size_t slot) {
    const bool cached = !request.file->direct.direct() ||
                        IsCached(request.file->buffered, request.begin_bytes, request.end_bytes);
    IoRequest io{.fd = cached ? request.file->buffered.fd() : request.file->direct.fd(),
                 .write = false,
                 .data = request.block,
                 .length_bytes = request.end_bytes - request.begin_bytes,
                 .offset_bytes = request.begin_bytes,
                 .tag = slot};
    if (request.pieces.size() == 1 && FitsStraight(request, cached)) {
      const Piece& piece = request.pieces.front();
      io.data = piece.target;
      io.offset_bytes = piece.offset_bytes;
      io.length_bytes = piece.length_bytes;
      request.begin_bytes = piece.offset_bytes;
      request.end_bytes = piece.offset_bytes + piece.length_bytes;
      GiveBack(request);
    }
    read_bytes_ += io.length_bytes;
    return queue_->Submit(io);
  }

  static bool FitsStraight(const Request& request, bool cached) {
    if (cached) return true;
    const Piece& piece = request.pieces.front();
    const auto address = reinterpret_cast<uintptr_t>(piece.target);
    return (address | piece.offset_bytes | piece.length_bytes) % kDirectAlignBytes == 0;
  }

  Result<void> FinishOne() {
    CAIRN_TRY_ASSIGN(const IoCompletion completion, queue_->Wait());
    const size_t slot = completion.request.tag;
    idle_.push_back(slot);
    Result<void> finished = Finish(requests_[slot], completion);
    GiveBack(requests_[slot]);
    return finished;
  }

  Result<void> Finish(Request& request, const IoCompletion& completion) {
    int error_number = completion.error_number;
    if (const int fault = FaultPoint("segment.read")) error_number = fault;
    const std::string& path = request.file->buffered.path();
    if (error_number != 0) {
      Error error = SystemError(error_number, "cannot read the segment", path);
      // EIO from a disk is damage of the medium; everything else may pass.
      if (error_number == EIO) error.code = ErrorCode::kDataLoss;
      return Fail(std::move(error).WithOffset(completion.request.offset_bytes));
    }
    const uint64_t have_end = completion.request.offset_bytes + completion.done_bytes;
    for (const Piece& piece : request.pieces) {
      if (piece.offset_bytes + piece.length_bytes > have_end) {
        return Fail(Error{
            .code = ErrorCode::kDataLoss,
            .message = fmt::format("the segment ends at {}, before the payload does", have_end),
            .file = path,
            .offset_bytes = piece.offset_bytes});
      }
      if (request.block != nullptr) {
        std::memcpy(piece.target, request.block + (piece.offset_bytes - request.begin_bytes),
                    piece.length_bytes);
      }
      missing_bytes_[piece.range] -= piece.length_bytes;
      if (missing_bytes_[piece.range] == 0) CAIRN_TRY(arrived_(piece.range));
    }
    return {};
  }

  void GiveBack(Request& request) {
    if (request.block != nullptr) pool_.Give(request.block);
    request.block = nullptr;
  }

  const std::span<const ReadRange> ranges_;
  const IoOptions& options_;
  BlockPool& pool_;
  const std::function<Result<std::shared_ptr<const SegmentFile>>(uint64_t)>& open_;
  const std::function<Result<void>(size_t)>& arrived_;

  std::vector<size_t> order_;
  std::vector<uint64_t> missing_bytes_;
  size_t next_ = 0;        // in order_
  uint64_t progress_ = 0;  // bytes of that range already asked for
  uint64_t read_bytes_ = 0;
  std::vector<Request> requests_;  // by slot
  std::vector<size_t> idle_;       // free slots
  std::unique_ptr<IoQueue> queue_;
};

}  // namespace

Result<std::shared_ptr<const SegmentFile>> SegmentFiles::Open(uint64_t segment_id,
                                                              const std::string& path,
                                                              bool direct) {
  std::lock_guard lock(mutex_);
  if (const auto found = by_id_.find(segment_id); found != by_id_.end()) {
    recent_.splice(recent_.begin(), recent_, found->second);
    return found->second->second;
  }
  auto file = std::make_shared<SegmentFile>();
  CAIRN_TRY_ASSIGN(file->direct, File::OpenRead(path, direct));
  CAIRN_TRY_ASSIGN(file->buffered, File::OpenRead(path, /*direct=*/false));
  recent_.emplace_front(segment_id, file);
  by_id_[segment_id] = recent_.begin();
  if (recent_.size() > kMaxOpen) {
    by_id_.erase(recent_.back().first);
    recent_.pop_back();
  }
  return file;
}

void SegmentFiles::Forget(uint64_t segment_id) {
  std::lock_guard lock(mutex_);
  if (const auto found = by_id_.find(segment_id); found != by_id_.end()) {
    recent_.erase(found->second);
    by_id_.erase(found);
  }
}

Result<uint64_t> ReadRanges(
    std::span<const ReadRange> ranges, const IoOptions& options, BlockPool& pool,
    const std::function<Result<std::shared_ptr<const SegmentFile>>(uint64_t segment_id)>& open,
    const std::function<Result<void>(size_t)>& arrived) {
  return Reader(ranges, options, pool, open, arrived).Run();
}

}  // namespace cairn::kv::internal
