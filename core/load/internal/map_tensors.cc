// 1. The tensors, their owners and the chunks of the owners are found in key order.
// 2. For each tensor, the range of its owner's chunks that contains its bytes is determined, if
//    these chunks are adjacent in one segment.
// 3. Every segment with such a range is mapped once. MapCheck checks the chunks in file order.

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
#include "kv/base/mapping.h"
#include "kv/io/worker_pool.h"

namespace cairn::core {
namespace internal {
namespace {

// A chunk in one extent, which is inside the mapping. Borrows everything.
struct MappedChunk {
  const std::string* fqn = nullptr;
  const ChunkInfo* chunk = nullptr;
  const kv::Mapping* mapping = nullptr;  // one per segment

  const kv::Extent& extent() const { return chunk->extents.front(); }
};

// The chunks of a tensor that owns bytes.
struct OwnerChunks {
  std::vector<ChunkInfo> chunks;
  std::vector<uint64_t> begins_bytes;  // offset of each chunk in the row-major payload
  uint64_t total_bytes = 0;
  bool is_row_major = true;  // the chunks are consecutive ranges of the row-major payload
};

// Chunks that contain a range of a payload, with one extent each and no deltas.
struct ChunkRange {
  std::span<const ChunkInfo> chunks;
  uint64_t skipped_bytes = 0;  // bytes of the first chunk before the range
};

bool Follows(const kv::Extent& extent, const kv::Extent& before) {
  return extent.segment_id == before.segment_id &&
         extent.offset_bytes == before.offset_bytes + before.length_bytes;
}

Result<std::vector<OwnerChunks>> FindOwnerChunks(const StepView& view,
                                                 std::span<const TensorInfo> owners) {
  std::vector<OwnerChunks> owner_chunks(owners.size());
  CAIRN_TRY(ForEachChunkOf(view, owners, [&](size_t i, ChunkInfo chunk) -> Result<void> {
    OwnerChunks& owner = owner_chunks[i];
    if (ContiguousOffsetBytes(owners[i].dtype, owners[i].shape, chunk.box) != owner.total_bytes) {
      owner.is_row_major = false;
    }
    owner.begins_bytes.push_back(owner.total_bytes);
    owner.total_bytes += chunk.length_bytes();
    owner.chunks.push_back(std::move(chunk));
    return {};
  }));
  return owner_chunks;
}

// Returns the chunks that contain a range of the owner's payload, if they are adjacent in one
// segment. Requires a range that is not empty and is inside the payload.
std::optional<ChunkRange> FindChunkRange(const OwnerChunks& owner, uint64_t begin_bytes,
                                         uint64_t length_bytes) {
  if (!owner.is_row_major) return std::nullopt;
  const auto& begins = owner.begins_bytes;
  const auto first = std::ranges::upper_bound(begins, begin_bytes) - begins.begin() - 1;
  const auto end = std::ranges::lower_bound(begins, begin_bytes + length_bytes) - begins.begin();
  const std::span<const ChunkInfo> chunks(owner.chunks.begin() + first, owner.chunks.begin() + end);
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].extents.size() > 1 || !chunks[i].deltas.empty()) return std::nullopt;
    if (i > 0 && !Follows(chunks[i].extents.front(), chunks[i - 1].extents.front())) {
      return std::nullopt;
    }
  }
  return ChunkRange{.chunks = chunks,
                    .skipped_bytes = begin_bytes - begins[static_cast<size_t>(first)]};
}

}  // namespace
}  // namespace internal

// Owns what the chunks borrow.
struct MapCheck::Chunks {
  internal::StepView view;
  std::vector<TensorInfo> owners;
  std::vector<internal::OwnerChunks> owner_chunks;
  std::map<uint64_t, std::shared_ptr<const kv::Mapping>> mappings;  // by segment
  std::vector<internal::MappedChunk> chunks;                        // aliases repeat chunks
};

namespace internal {
namespace {

// Maps a tensor, and adds its chunks to `checked`, which has the owners of all tensors.
Result<std::optional<MappedTensor>> MapTensor(const TensorInfo& tensor, MapCheck::Chunks& checked) {
  if (tensor.nbytes == 0) return MappedTensor{};
  const TensorInfo& owner = ByName(checked.owners, tensor.alias_of.value_or(tensor.fqn));
  if (tensor.alias_of) {
    CAIRN_TRY(CheckAlias(tensor, owner));
    if (!IsContiguous(tensor.shape, tensor.alias_strides)) return std::nullopt;
  }
  const uint64_t begin = tensor.alias_of ? tensor.alias_offset_bytes : 0;
  const auto owner_index = static_cast<size_t>(&owner - checked.owners.data());
  const auto range = FindChunkRange(checked.owner_chunks[owner_index], begin, tensor.nbytes);
  if (!range) return std::nullopt;
  const kv::Extent& first = range->chunks.front().extents.front();
  const kv::Extent& last = range->chunks.back().extents.front();
  auto& mapping = checked.mappings[first.segment_id];
  if (mapping == nullptr) {
    CAIRN_TRY_ASSIGN(mapping, checked.view.snapshot->Map(first.segment_id));
  }
  const std::span<const std::byte> segment = mapping->bytes();
  if (last.offset_bytes + last.length_bytes > segment.size()) {
    return Fail(DamagedBytes(checked.view, tensor.fqn, last.segment_id,
                             "the segment is too short for a chunk", segment.size()));
  }
  for (const ChunkInfo& chunk : range->chunks) {
    checked.chunks.push_back({.fqn = &owner.fqn, .chunk = &chunk, .mapping = mapping.get()});
  }
  return MappedTensor{
      .mapping = mapping,
      .bytes = segment.subspan(first.offset_bytes + range->skipped_bytes, tensor.nbytes)};
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

// Checks the digest of a chunk. `populate`: finds out first whether it can be read.
Result<void> CheckBytes(const StepView& view, const MappedChunk& mapped, bool populate) {
  const kv::Extent& extent = mapped.extent();
  const auto damaged = [&](std::string message) {
    return Fail(DamagedBytes(view, *mapped.fqn, extent.segment_id, std::move(message),
                             extent.offset_bytes));
  };
  if (populate) {
    const auto readable = mapped.mapping->Populate(extent.offset_bytes, extent.length_bytes);
    if (!readable) return damaged(readable.error().message);
  }
  const auto bytes = mapped.mapping->bytes().subspan(extent.offset_bytes, extent.length_bytes);
  if (kv::PayloadDigest(bytes, extent.page_bytes()) == mapped.chunk->digest) return {};
  return damaged(fmt::format("chunk {} does not match its digest; the bytes on disk have changed",
                             FormatNumbers(mapped.chunk->box.offsets)));
}

// Threads: Check is safe.
class Checker {
 public:
  Checker(const StepView& view, std::span<const Stretch> stretches, ProgressMeter& meter)
      : view_(view),
        stretches_(stretches),
        meter_(meter),
        failed_(stretches.size()),
        results_(stretches.size()) {}

  void Check(size_t i) {
    if (i > failed_) return;
    ReadAhead(stretches_[i].before_bytes + kAheadBytes);
    results_[i] = CheckChunks(stretches_[i]);
    if (results_[i]) results_[i] = meter_.Add(stretches_[i].length_bytes());
    if (results_[i]) return;
    size_t failed = failed_;
    while (i < failed && !failed_.compare_exchange_weak(failed, i)) continue;
  }

  /// Returns the first error in file order: items begin in this order, so all before one that fails
  /// have begun, too. Requires that all items are done.
  Result<void> result() const {
    for (const Result<void>& result : results_) CAIRN_TRY(result);
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
      CAIRN_TRY(CheckBytes(view_, chunk, /*populate=*/!all));
    }
    return {};
  }

  const StepView& view_;
  const std::span<const Stretch> stretches_;
  ProgressMeter& meter_;
  std::atomic<size_t> asked_ = 0;      // stretches whose reading has begun
  std::atomic<size_t> failed_;         // the first that failed, or the number of stretches
  std::vector<Result<void>> results_;  // by stretch
};

// Checks all chunks against their digests, in file order and on all cores, with read-ahead.
// kDataLoss: a chunk does not match or cannot be read; names key, file and offset of the first.
// kCancelled: `progress` asked to stop.
Result<void> CheckMapped(const StepView& view, std::vector<MappedChunk> chunks,
                         const Progress& progress) {
  std::ranges::sort(chunks, {}, [](const MappedChunk& chunk) {
    return std::tuple(chunk.extent().segment_id, chunk.extent().offset_bytes, chunk.chunk);
  });
  const auto repeated = std::ranges::unique(chunks, {}, &MappedChunk::chunk);
  chunks.erase(repeated.begin(), repeated.end());
  std::vector<Stretch> stretches = JoinChunks(chunks);
  if (stretches.empty()) return {};
  UseLargePages(stretches);
  ProgressMeter meter(progress, stretches.back().before_bytes + stretches.back().length_bytes());
  Checker checker(view, stretches, meter);
  kv::ParallelFor(stretches.size(), [&](size_t i, size_t) { checker.Check(i); }, kMinThreads);
  return checker.result();
}

}  // namespace
}  // namespace internal

MapCheck::MapCheck(std::unique_ptr<const Chunks> chunks) : chunks_(std::move(chunks)) {}
MapCheck::~MapCheck() = default;

Result<void> MapCheck::Run(const Progress& progress) const {
  return internal::CheckMapped(chunks_->view, chunks_->chunks, progress);
}

namespace internal {

Result<UncheckedMap> RunMap(StepView view, std::span<const std::string> fqns) {
  auto checked = std::make_unique<MapCheck::Chunks>();
  checked->view = std::move(view);
  CAIRN_TRY_ASSIGN(const auto tensors, FindNamed(checked->view, {fqns.begin(), fqns.end()}));
  CAIRN_TRY_ASSIGN(checked->owners, FindOwners(checked->view, tensors));
  CAIRN_TRY_ASSIGN(checked->owner_chunks, FindOwnerChunks(checked->view, checked->owners));
  UncheckedMap mapped;
  mapped.tensors.resize(fqns.size());
  for (size_t i = 0; i < fqns.size(); ++i) {
    CAIRN_TRY_ASSIGN(mapped.tensors[i], MapTensor(ByName(tensors, fqns[i]), *checked));
  }
  mapped.check = std::make_shared<MapCheck>(std::move(checked));
  return mapped;
}

}  // namespace internal
}  // namespace cairn::core
