#include "core/step/internal/delta_chain.h"

#include <algorithm>
#include <utility>

#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/base/read_range.h"
#include "kv/io/worker_pool.h"

namespace cairn::core::internal {
namespace {

/// True if the bytes of the extent match their page digests, so that they are as they were written.
bool IsIntact(const kv::Snapshot& snapshot, const kv::Extent& extent) {
  std::vector<uint64_t> stored(kv::PageCount(extent.length_bytes));
  std::vector<std::byte> bytes(extent.length_bytes);
  const kv::ReadRange ranges[] = {
      {.segment_id = extent.segment_id, .offset_bytes = extent.offset_bytes, .target = bytes},
      {.segment_id = extent.segment_id,
       .offset_bytes = extent.page_digests_offset_bytes,
       .target = std::as_writable_bytes(std::span(stored))}};
  if (!snapshot.Read(ranges, 1, [](size_t, auto) { return Result<void>(); })) return false;
  std::vector<uint64_t> computed;
  kv::AppendPageDigests(bytes, computed);
  return computed == stored;
}

Result<Delta> ParseOne(const StepView& view, const std::string& fqn, const ChunkInfo& chunk,
                       const kv::Extent& extent, std::span<const std::byte> stored) {
  auto delta = Delta::Parse(stored, chunk.length_bytes());
  if (delta) return delta;
  Error error =
      DamagedBytes(view, fqn, extent.segment_id, delta.error().message, extent.offset_bytes);
  error.code = delta.error().code;  // a newer version is not damage
  return Fail(std::move(error));
}

}  // namespace

uint64_t StoredDeltaBytes(const ChunkInfo& chunk) {
  uint64_t bytes = 0;
  for (const kv::Extent& delta : chunk.deltas) bytes += delta.length_bytes;
  return bytes;
}

uint64_t DeltaCost(const ChunkInfo& chunk) {
  return std::max(StoredDeltaBytes(chunk), chunk.deltas.size() * (chunk.length_bytes() / 32));
}

Result<void> DeltaChain::Apply(uint64_t page, std::span<std::byte> bytes) const {
  for (const Delta& delta : deltas_) {
    if (delta.IsChanged(page)) CAIRN_TRY(delta.Apply(page, bytes));
  }
  return {};
}

Result<void> DeltaChain::ApplyAll(uint64_t first_page, std::span<std::byte> bytes) const {
  for (uint64_t page = first_page; !bytes.empty(); ++page) {
    const auto count = std::min<uint64_t>(kv::kPageBytes, bytes.size());
    CAIRN_TRY(Apply(page, bytes.first(count)));
    bytes = bytes.subspan(count);
  }
  return {};
}

Result<DeltaChain> DeltaChain::Parse(const StepView& view, const std::string& fqn,
                                     const ChunkInfo& chunk, const StoredDeltas& stored,
                                     size_t first) {
  DeltaChain chain;
  for (size_t i = 0; i < stored.size(); ++i) {
    CAIRN_TRY_ASSIGN(Delta delta, ParseOne(view, fqn, chunk, chunk.deltas[first + i], stored[i]));
    chain.deltas_.emplace_back(std::move(delta));
  }
  return chain;
}

std::span<std::byte> StoredDeltaMemory::Take(uint64_t bytes) {
  if (bytes > size_bytes_) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    size_bytes_ = bytes;
  }
  return {memory_.get(), bytes};
}

Result<uint64_t> ReadStoredDeltas(const StepView& view, std::span<const DeltaRead> reads,
                                  StoredDeltaMemory& memory) {
  const auto deltas_of = [](const DeltaRead& read) {
    return std::span(read.chunk->deltas).subspan(read.first);
  };
  uint64_t total_bytes = 0;
  for (const DeltaRead& read : reads) {
    for (const kv::Extent& delta : deltas_of(read)) total_bytes += delta.length_bytes;
  }
  std::span<std::byte> free = memory.Take(total_bytes);
  std::vector<kv::ReadRange> ranges;
  for (const DeltaRead& read : reads) {
    for (const kv::Extent& delta : deltas_of(read)) {
      const auto target = free.first(delta.length_bytes);
      free = free.subspan(target.size());
      read.stored->push_back(target);
      ranges.push_back(
          {.segment_id = delta.segment_id, .offset_bytes = delta.offset_bytes, .target = target});
    }
  }
  return view.snapshot->Read(ranges, kv::WorkerThreads(),
                             [](size_t, auto) { return Result<void>(); });
}

Result<uint64_t> ReadDeltas(const StepView& view, std::span<DeltaRead> reads) {
  std::vector<StoredDeltas> stored(reads.size());
  for (size_t i = 0; i < reads.size(); ++i) reads[i].stored = &stored[i];
  StoredDeltaMemory memory;
  CAIRN_TRY_ASSIGN(const uint64_t bytes, ReadStoredDeltas(view, reads, memory));
  std::vector<Result<DeltaChain>> parsed(reads.size());
  kv::ParallelFor(reads.size(), [&](size_t i, size_t) {
    parsed[i] = DeltaChain::Parse(view, *reads[i].fqn, *reads[i].chunk, stored[i], reads[i].first);
  });
  for (size_t i = 0; i < reads.size(); ++i) {
    CAIRN_TRY_ASSIGN(*reads[i].chain, std::move(parsed[i]));
  }
  return bytes;
}

Result<void> ReadStoredChunk(const std::shared_ptr<const kv::Snapshot>& snapshot,
                             std::string_view key, const kv::ChunkExtents& extents,
                             std::span<std::byte> bytes) {
  CAIRN_TRY_ASSIGN(const kv::ParsedKey parsed, kv::ParseKey(key));
  const std::string fqn(parsed.fqn);
  ChunkInfo chunk;
  chunk.extents = extents.payload;
  chunk.deltas = extents.deltas;
  std::vector<kv::ReadRange> ranges;
  uint64_t at = 0;
  for (const kv::Extent& extent : extents.payload) {
    ranges.push_back({.segment_id = extent.segment_id,
                      .offset_bytes = extent.offset_bytes,
                      .target = bytes.subspan(at, extent.length_bytes)});
    at += extent.length_bytes;
  }
  CAIRN_TRY(snapshot->Read(ranges, 1,
                           [](size_t, std::span<const std::byte>) -> Result<void> { return {}; }));
  const StepView view{.snapshot = snapshot, .step = {}, .directory = {}};
  DeltaChain chain;
  DeltaRead read{.fqn = &fqn, .chunk = &chunk, .chain = &chain};
  CAIRN_TRY(ReadDeltas(view, {&read, 1}));
  return chain.ApplyAll(0, bytes);
}

std::optional<kv::Extent> FirstDamaged(const kv::Snapshot& snapshot,
                                       const kv::ChunkExtents& extents) {
  std::optional<kv::Extent> damaged;
  extents.ForEach([&](const kv::Extent& extent) {
    if (!damaged && !IsIntact(snapshot, extent)) damaged = extent;
  });
  return damaged;
}

Error FindDamage(const StepView& view, const std::string& fqn, const ChunkInfo& chunk,
                 const std::string& message) {
  const kv::Extent wrong =
      FirstDamaged(*view.snapshot, chunk.stored()).value_or(chunk.deltas.back());
  return DamagedBytes(view, fqn, wrong.segment_id, message, wrong.offset_bytes);
}

}  // namespace cairn::core::internal
