#include "core/step/internal/delta_chain.h"

#include <algorithm>

#include "core/step/internal/stored_page_digests.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/base/read_range.h"
#include "kv/io/worker_pool.h"

namespace cairn::core::internal {
namespace {

/// True if the bytes of the extent match their page digests, so that they are as they were written.
bool IsIntact(const kv::Snapshot& snapshot, const kv::Extent& extent) {
  std::vector<uint64_t> stored(extent.page_count());
  std::vector<std::byte> bytes(extent.length_bytes);
  if (!ReadWithPageDigests(snapshot, extent, bytes, stored)) return false;
  std::vector<uint64_t> computed;
  kv::AppendPageDigests(bytes, computed, extent.page_bytes());
  return computed == stored;
}

/// Returns the delta of a chunk that was read.
Result<Delta> ParseDelta(const StepView& view, const DeltaRead& read, const kv::ReadRange& range) {
  auto delta = Delta::Parse(range.target, read.chunk->length_bytes());
  if (delta) return delta;
  Error error =
      DamagedBytes(view, *read.fqn, range.segment_id, delta.error().message, range.offset_bytes);
  error.code = delta.error().code;  // a newer version is not damage
  return Fail(std::move(error));
}

}  // namespace

uint64_t DeltaCost(const ChunkInfo& chunk) {
  uint64_t bytes = 0;
  for (const kv::Extent& delta : chunk.deltas) bytes += delta.length_bytes;
  return std::max(bytes, chunk.deltas.size() * (chunk.length_bytes() / 32));
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

Result<uint64_t> ReadDeltas(const StepView& view, std::span<const DeltaRead> reads,
                            DeltaMemory* memory) {
  const auto deltas_of = [](const DeltaRead& read) {
    return std::span(read.chunk->deltas).subspan(read.first);
  };
  uint64_t total_bytes = 0;
  for (const DeltaRead& read : reads) {
    for (const kv::Extent& delta : deltas_of(read)) total_bytes += delta.length_bytes;
  }
  DeltaMemory own;
  if (memory == nullptr) memory = &own;
  if (memory->bytes.use_count() != 1 || memory->length_bytes < total_bytes) {
    memory->length_bytes = total_bytes;
    memory->bytes = std::make_shared_for_overwrite<std::byte[]>(total_bytes);
  }
  std::span<std::byte> free(memory->bytes.get(), total_bytes);
  std::vector<kv::ReadRange> ranges;
  std::vector<const DeltaRead*> readers;  // of the ranges
  for (const DeltaRead& read : reads) {
    for (const kv::Extent& delta : deltas_of(read)) {
      ranges.push_back({.segment_id = delta.segment_id,
                        .offset_bytes = delta.offset_bytes,
                        .target = free.first(delta.length_bytes)});
      readers.push_back(&read);
      free = free.subspan(delta.length_bytes);
    }
  }
  // A thread decompresses what has arrived, while other deltas are read.
  std::vector<std::optional<Result<Delta>>> parsed(ranges.size());
  const auto on_read = [&](size_t i, auto) -> Result<void> {
    parsed[i] = ParseDelta(view, *readers[i], ranges[i]);
    return {};
  };
  CAIRN_TRY_ASSIGN(const uint64_t bytes, view.snapshot->Read(ranges, kv::WorkerThreads(), on_read));
  auto next = parsed.begin();
  for (const DeltaRead& read : reads) {
    std::vector<Delta> deltas;
    for (size_t i = 0; i < deltas_of(read).size(); ++i) {
      CAIRN_TRY_ASSIGN(Delta delta, *std::move(*next++));
      deltas.push_back(std::move(delta));
    }
    *read.chain = DeltaChain(std::move(deltas), memory->bytes);
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
