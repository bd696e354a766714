#include "core/save/internal/equal_chunks.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "core/step/internal/delta_chain.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/key.h"

namespace cairn::core::internal {

std::optional<EqualChunks::Found> EqualChunks::Find(const PlannedChunk& chunk) {
  if (!IsCandidate(chunk) || !chunk.is_digested()) return std::nullopt;
  const auto written = written_.find(chunk.digest);
  if (written != written_.end() && writer_.IsInCurrentSegment(written->second.extents) &&
      IsSame(chunk, written->second)) {
    return Found{.extents = written->second.extents, .since_step = written->second.step};
  }
  if (!chunk.base && !base_was_read_) ReadBase();
  const auto stored = in_base_.find(chunk.digest);
  if (stored == in_base_.end() || !IsSame(chunk, stored->second)) return std::nullopt;
  return Found{.extents = stored->second.info.stored(),
               .since_step = stored->second.info.since_step,
               .in_base = true};
}

void EqualChunks::Add(const PlannedChunk& chunk, const kv::ChunkExtents& extents, uint64_t step) {
  if (!IsCandidate(chunk) || !chunk.is_digested()) return;
  // If it is full, the older ones are forgotten: they are in segments that are sealed.
  if (written_.size() >= kMaxChunks) written_.clear();
  written_.insert_or_assign(chunk.digest, Written{.source = chunk.source,
                                                  .begin_bytes = chunk.begin_bytes,
                                                  .length_bytes = chunk.length_bytes,
                                                  .extents = extents,
                                                  .step = step});
}

void EqualChunks::ReadBase() {
  base_was_read_ = true;
  if (base_ == nullptr) return;
  const auto add = [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
    auto decoded = DecodeChunk(key, record);
    if (!decoded) return true;
    const uint64_t length_bytes = decoded->info.length_bytes();
    if (length_bytes >= kMinBytes && length_bytes <= kMaxBytes) {
      in_base_.try_emplace(decoded->info.digest,
                           InBase{.key = std::string(key), .info = std::move(decoded->info)});
    }
    return in_base_.size() < kMaxChunks;
  };
  // A base that cannot be read does not fail the save.
  (void)base_->snapshot->Scan(kv::Column::kChunks, base_->step, "", add);
}

bool EqualChunks::IsSame(const PlannedChunk& chunk, const Written& written) {
  if (written.length_bytes != chunk.length_bytes) return false;
  return HasPages(chunk, HostPayload(*written.source, written.begin_bytes, written.length_bytes));
}

bool EqualChunks::IsSame(const PlannedChunk& chunk, const InBase& stored) {
  if (stored.info.length_bytes() != chunk.length_bytes) return false;
  stored_.resize(std::max<size_t>(stored_.size(), chunk.length_bytes));
  const auto bytes = std::span(stored_).first(chunk.length_bytes);
  if (!ReadStoredChunk(base_->snapshot, stored.key, stored.info.stored(), bytes)) return false;
  const TensorView view{
      .dtype = DType::kUInt8, .shape = {bytes.size()}, .strides = {}, .data = bytes.data()};
  return HasPages(chunk, HostPayload(view, 0, bytes.size()));
}

bool EqualChunks::HasPages(const PlannedChunk& chunk, const HostPayload& other) {
  const HostPayload payload(*chunk.source, chunk.begin_bytes, chunk.length_bytes);
  for (uint64_t page = 0; page < kv::PageCount(chunk.length_bytes); ++page) {
    if (!std::ranges::equal(payload.Page(page, pages_[0]), other.Page(page, pages_[1]))) {
      return false;
    }
  }
  return true;
}

}  // namespace cairn::core::internal
