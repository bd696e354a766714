// 1. The tensors, their owners and the chunks of the owners are found in key order.
// 2. For each tensor, the range of its owner's chunks that contains its bytes is determined, if
//    these chunks are adjacent in one segment.
// 3. Every segment with such a range is mapped once. MapCheck keeps the chunks that are mapped, in
//    file order, and checks them.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "core/base/internal/progress_meter.h"
#include "core/load/internal/load.h"
#include "core/step/contents.h"
#include "core/step/internal/lookup.h"
#include "kv/base/catch_exhaustion.h"
#include "kv/base/mapping.h"
#include "kv/base/mutex.h"
#include "kv/io/worker_pool.h"

namespace cairn::core {
namespace internal {
namespace {

// A chunk of a tensor that owns bytes. There may be very many.
struct OwnedChunk {
  uint64_t begin_bytes = 0;  // in the row-major payload of the owner
  kv::Extent extent;         // the first one
  kv::Digest digest;
  uint32_t owner = 0;
  bool is_plain = false;   // it has one extent and no deltas
  bool is_mapped = false;  // by at least one tensor
};

// The chunks of a tensor that owns bytes.
struct OwnerChunks {
  size_t begin = 0;  // of all chunks
  size_t end = 0;
  uint64_t total_bytes = 0;
  bool is_row_major = true;  // the chunks are consecutive ranges of the row-major payload
};

bool Follows(const kv::Extent& extent, const kv::Extent& before) {
  return extent.segment_id == before.segment_id &&
         extent.offset_bytes == before.offset_bytes + before.length_bytes;
}

}  // namespace

class Checker;

}  // namespace internal

struct MapCheck::Chunks {
  internal::StepView view;
  std::vector<TensorInfo> owners;                                   // key order
  std::map<uint64_t, std::shared_ptr<const kv::Mapping>> mappings;  // by segment
  // Those of the owners, in key order; at the end, those that are mapped, in file order.
  std::vector<internal::OwnedChunk> chunks;
  mutable Mutex mutex;
  // The check that runs. Calls of Run share it.
  mutable std::weak_ptr<internal::Checker> running CAIRN_GUARDED_BY(mutex);
};

namespace internal {
namespace {

// Returns the index of one of the tensors. `likely`: its index, if the requests are in key order.
size_t IndexOf(std::span<const TensorInfo> tensors, std::string_view fqn, size_t likely) {
  if (likely < tensors.size() && tensors[likely].fqn == fqn) return likely;
  return static_cast<size_t>(&ByName(tensors, fqn) - tensors.data());
}

// Adds the chunks of all owners. Returns which they are, by owner.
Result<std::vector<OwnerChunks>> AddChunks(MapCheck::Chunks& checked) {
  std::vector<OwnerChunks> by_owner(checked.owners.size());
  checked.chunks.reserve(by_owner.size());
  const auto add = [&](size_t i, const ChunkInfo& chunk) -> Result<void> {
    const TensorInfo& tensor = checked.owners[i];
    OwnerChunks& owner = by_owner[i];
    if (owner.end == 0) owner.begin = checked.chunks.size();
    if (ContiguousOffsetBytes(tensor.dtype, tensor.shape, chunk.box) != owner.total_bytes) {
      owner.is_row_major = false;
    }
    checked.chunks.push_back({.begin_bytes = owner.total_bytes,
                              .extent = chunk.extents.front(),
                              .digest = chunk.digest,
                              .owner = static_cast<uint32_t>(i),
                              .is_plain = chunk.extents.size() == 1 && chunk.deltas.empty()});
    owner.total_bytes += chunk.length_bytes();
    owner.end = checked.chunks.size();
    return {};
  };
  CAIRN_TRY(ForEachChunkOf(checked.view, checked.owners, add));
  return by_owner;
}

// Returns the chunks that contain a range of the owner's payload, if they are adjacent in one
// segment, and otherwise none. Requires a range that is not empty and is inside the payload.
std::span<OwnedChunk> FindChunkRange(const OwnerChunks& owner, std::span<OwnedChunk> all,
                                     uint64_t begin_bytes, uint64_t length_bytes) {
  if (!owner.is_row_major) return {};
  const std::span<OwnedChunk> owned = all.subspan(owner.begin, owner.end - owner.begin);
  const auto first = std::ranges::upper_bound(owned, begin_bytes, {}, &OwnedChunk::begin_bytes) - 1;
  const auto end = std::ranges::lower_bound(first, owned.end(), begin_bytes + length_bytes, {},
                                            &OwnedChunk::begin_bytes);
  for (auto chunk = first; chunk != end; ++chunk) {
    if (!chunk->is_plain) return {};
    if (chunk != first && !Follows(chunk->extent, std::prev(chunk)->extent)) return {};
  }
  return {first, end};
}

// Maps a tensor, and marks its chunks in `checked`, which has the owners of all tensors.
Result<std::optional<MappedTensor>> MapTensor(const TensorInfo& tensor, size_t owner_index,
                                              const OwnerChunks& owner, MapCheck::Chunks& checked) {
  if (tensor.nbytes == 0) return MappedTensor{};
  if (tensor.alias_of) {
    CAIRN_TRY(CheckAlias(tensor, checked.owners[owner_index]));
    if (!IsContiguous(tensor.shape, tensor.alias_strides)) return std::nullopt;
  }
  const uint64_t begin = tensor.alias_of ? tensor.alias_offset_bytes : 0;
  const auto range = FindChunkRange(owner, checked.chunks, begin, tensor.nbytes);
  if (range.empty()) return std::nullopt;
  const kv::Extent& first = range.front().extent;
  const kv::Extent& last = range.back().extent;
  auto& mapping = checked.mappings[first.segment_id];
  if (mapping == nullptr) {
    CAIRN_TRY_ASSIGN(mapping, checked.view.snapshot->Map(first.segment_id));
  }
  const std::span<const std::byte> segment = mapping->bytes();
  if (last.offset_bytes + last.length_bytes > segment.size()) {
    return Fail(DamagedBytes(checked.view, tensor.fqn, last.segment_id,
                             "the segment is too short for a chunk", segment.size()));
  }
  for (OwnedChunk& chunk : range) chunk.is_mapped = true;
  const uint64_t skipped_bytes = begin - range.front().begin_bytes;
  return MappedTensor{.mapping = mapping,
                      .bytes = segment.subspan(first.offset_bytes + skipped_bytes, tensor.nbytes)};
}

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
  std::span<const OwnedChunk> chunks;
  const kv::Mapping* mapping = nullptr;
  uint64_t begin_bytes = 0;  // in the mapping
  uint64_t end_bytes = 0;
  uint64_t before_bytes = 0;  // total length of the stretches before this one
  bool has_large_pages = false;

  uint64_t length_bytes() const { return end_bytes - begin_bytes; }
};

// Returns the chunks in file order, joined.
std::vector<Stretch> JoinChunks(const MapCheck::Chunks& checked) {
  std::vector<Stretch> stretches;
  const std::span<const OwnedChunk> chunks(checked.chunks);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const kv::Extent& extent = chunks[i].extent;
    const uint64_t end_bytes = extent.offset_bytes + extent.length_bytes;
    Stretch* const last = stretches.empty() ? nullptr : &stretches.back();
    const bool is_same_segment =
        last != nullptr && extent.segment_id == chunks[i - 1].extent.segment_id;
    if (is_same_segment && extent.offset_bytes <= last->end_bytes + kGapBytes &&
        end_bytes - last->begin_bytes <= kStretchBytes) {
      last->chunks = {last->chunks.data(), last->chunks.size() + 1};
      last->end_bytes = std::max(last->end_bytes, end_bytes);
      continue;
    }
    stretches.push_back(
        {.chunks = chunks.subspan(i, 1),
         .mapping = is_same_segment ? last->mapping : checked.mappings.at(extent.segment_id).get(),
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

// Returns the index of an element of a row-major tensor.
std::vector<uint64_t> IndexOfByte(const TensorInfo& tensor, uint64_t offset_bytes) {
  std::vector<uint64_t> index(tensor.shape.size());
  uint64_t left = offset_bytes / schema::ElementBytes(tensor.dtype);
  for (size_t d = index.size(); d-- > 0; left /= tensor.shape[d]) index[d] = left % tensor.shape[d];
  return index;
}

// Checks the digest of a chunk. `populate`: finds out first whether it can be read.
Result<void> CheckBytes(const MapCheck::Chunks& checked, const OwnedChunk& chunk,
                        const kv::Mapping& mapping, bool populate) {
  const kv::Extent& extent = chunk.extent;
  const TensorInfo& owner = checked.owners[chunk.owner];
  const auto damaged = [&](std::string message) {
    return Fail(DamagedBytes(checked.view, owner.fqn, extent.segment_id, std::move(message),
                             extent.offset_bytes));
  };
  if (populate) {
    const auto readable = mapping.Populate(extent.offset_bytes, extent.length_bytes);
    if (!readable) return damaged(readable.error().message);
  }
  const auto bytes = mapping.bytes().subspan(extent.offset_bytes, extent.length_bytes);
  if (kv::PayloadDigest(bytes, extent.page_bytes()) == chunk.digest) return {};
  return damaged(fmt::format("chunk {} does not match its digest; the bytes on disk have changed",
                             FormatNumbers(IndexOfByte(owner, chunk.begin_bytes))));
}

}  // namespace

// One check of all stretches, in file order. Threads: safe; those that call Run share the work, so
// that a caller with a higher priority waits at most for what others have begun.
class Checker {
 public:
  explicit Checker(const MapCheck::Chunks& checked)
      : checked_(checked), stretches_(JoinChunks(checked)) {
    UseLargePages(stretches_);
  }

  Result<void> Run(const Progress& progress) {
    if (stretches_.empty()) return {};
    const Stretch& last = stretches_.back();
    ProgressMeter meter(progress, last.before_bytes + last.length_bytes());
    std::atomic<bool> is_stopped = false;  // by `progress`
    const auto check_next = [&](size_t, size_t) {
      if (is_stopped) return;
      const size_t i = next_++;
      if (i >= stretches_.size()) return;  // others have begun the rest
      Check(i);
      if (!meter.Add(stretches_[i].length_bytes())) is_stopped = true;
    };
    kv::ParallelFor(stretches_.size(), check_next, kMinThreads);
    if (is_stopped) return Fail(ErrorCode::kCancelled, "stopped as asked");
    const MutexLock lock(mutex_);
    while (done_ < stretches_.size()) changed_.Wait(mutex_);
    return failure_;
  }

 private:
  void Check(size_t i) {
    Result<void> result;
    if (i <= failed_) {
      ReadAhead(stretches_[i].before_bytes + kAheadBytes);
      result = kv::CatchExhaustion("the check of mapped tensors",
                                   [&] { return CheckChunks(stretches_[i]); });
    }
    const MutexLock lock(mutex_);
    if (!result && i < failed_) {
      failed_ = i;
      failure_ = std::move(result);
    }
    if (++done_ == stretches_.size()) changed_.NotifyAll();
  }

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
    for (const OwnedChunk& chunk : stretch.chunks) {
      CAIRN_TRY(CheckBytes(checked_, chunk, *stretch.mapping, /*populate=*/!all));
    }
    return {};
  }

  const MapCheck::Chunks& checked_;
  std::vector<Stretch> stretches_;
  std::atomic<size_t> next_ = 0;   // the first that no thread has begun to check
  std::atomic<size_t> asked_ = 0;  // stretches whose reading has begun
  std::atomic<size_t> failed_ = ~size_t{0};
  Mutex mutex_;
  CondVar changed_;
  size_t done_ CAIRN_GUARDED_BY(mutex_) = 0;
  // The error of failed_, the first in file order: all stretches before it have begun, too.
  Result<void> failure_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace internal

MapCheck::MapCheck(std::unique_ptr<const Chunks> chunks) : chunks_(std::move(chunks)) {}
MapCheck::~MapCheck() = default;

Result<void> MapCheck::Run(const Progress& progress) const {
  std::shared_ptr<internal::Checker> checker;
  {
    const MutexLock lock(chunks_->mutex);
    checker = chunks_->running.lock();
    if (checker == nullptr) {
      checker = std::make_shared<internal::Checker>(*chunks_);
      chunks_->running = checker;
    }
  }
  return checker->Run(progress);
}

namespace internal {

Result<UncheckedMap> RunMap(StepView view, std::span<const std::string> fqns) {
  auto checked = std::make_unique<MapCheck::Chunks>();
  checked->view = std::move(view);
  CAIRN_TRY_ASSIGN(const auto tensors, FindNamed(checked->view, {fqns.begin(), fqns.end()}));
  CAIRN_TRY_ASSIGN(checked->owners, FindOwners(checked->view, tensors));
  CAIRN_TRY_ASSIGN(const std::vector<OwnerChunks> by_owner, AddChunks(*checked));
  UncheckedMap mapped;
  mapped.tensors.resize(fqns.size());
  for (size_t i = 0; i < fqns.size(); ++i) {
    const TensorInfo& tensor = tensors[IndexOf(tensors, fqns[i], i)];
    const std::string& name = tensor.alias_of ? *tensor.alias_of : tensor.fqn;
    const size_t owner = IndexOf(checked->owners, name, i);
    CAIRN_TRY_ASSIGN(mapped.tensors[i], MapTensor(tensor, owner, by_owner[owner], *checked));
  }
  std::erase_if(checked->chunks, [](const OwnedChunk& chunk) { return !chunk.is_mapped; });
  std::ranges::sort(checked->chunks, {}, [](const OwnedChunk& chunk) {
    return std::tuple(chunk.extent.segment_id, chunk.extent.offset_bytes, chunk.owner);
  });
  mapped.check = std::make_shared<MapCheck>(std::move(checked));
  return mapped;
}

}  // namespace internal
}  // namespace cairn::core
