#pragma once
/// Finds chunks with equal bytes under other keys: copies of a tensor, and tensors that were
/// renamed.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/save/internal/chunk_source.h"
#include "core/save/internal/tensor_payload.h"
#include "core/step/internal/delta_chain.h"
#include "core/step/internal/lookup.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/chunk_record.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/base/key.h"
#include "kv/step_writer.h"

namespace cairn::core::internal {

/// Digests find candidates; their bytes are compared before they are shared. Chunks below 4 KiB or
/// above 64 MiB are not shared. Memory: about 100 bytes per chunk of the base and of this save, at
/// most 2^20 each; one chunk. Ownership: borrows everything. Threads: one.
class EqualChunks {
 public:
  EqualChunks(const kv::StepWriter& writer, const StepView* base) : writer_(writer), base_(base) {}

  static bool IsCandidate(const PlannedChunk& chunk) {
    return chunk.has_bytes && !chunk.is_on_device() && chunk.length_bytes >= kMinBytes &&
           chunk.length_bytes <= kMaxBytes;
  }

  struct Found {
    kv::ChunkExtents extents;
    uint64_t since_step = 0;
    bool in_base = false;  // the base has the extents; otherwise the current segment
  };
  /// Returns where the bytes of a digested chunk are stored; nothing if they are not found. The
  /// records of the base are read for the first chunk whose key the base does not have. Bytes that
  /// cannot be read are not found.
  std::optional<Found> Find(const PlannedChunk& chunk) {
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

  /// Adds a chunk that was appended. Its memory must not change until the save ends.
  void Add(const PlannedChunk& chunk, const kv::ChunkExtents& extents, uint64_t step) {
    if (!IsCandidate(chunk) || !chunk.is_digested()) return;
    // If it is full, the older ones are forgotten: they are in segments that are sealed.
    if (written_.size() >= kMaxChunks) written_.clear();
    written_.insert_or_assign(chunk.digest, Written{.source = chunk.source,
                                                    .begin_bytes = chunk.begin_bytes,
                                                    .length_bytes = chunk.length_bytes,
                                                    .extents = extents,
                                                    .step = step});
  }

 private:
  static constexpr uint64_t kMinBytes = 4096;
  static constexpr uint64_t kMaxBytes = 64 << 20;
  static constexpr size_t kMaxChunks = size_t{1} << 20;

  struct Hash {
    size_t operator()(const kv::Digest& digest) const { return digest.lo; }
  };
  struct Written {
    TensorRef source;
    uint64_t begin_bytes = 0;
    uint64_t length_bytes = 0;
    kv::ChunkExtents extents;
    uint64_t step = 0;
  };
  struct InBase {
    std::string key;
    ChunkInfo info;
  };

  void ReadBase() {
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

  bool IsSame(const PlannedChunk& chunk, const Written& written) {
    if (written.length_bytes != chunk.length_bytes) return false;
    return HasPages(chunk, HostPayload(written.source, written.begin_bytes, written.length_bytes));
  }
  bool IsSame(const PlannedChunk& chunk, const InBase& stored) {
    if (stored.info.length_bytes() != chunk.length_bytes) return false;
    stored_.resize(std::max<size_t>(stored_.size(), chunk.length_bytes));
    const auto bytes = std::span(stored_).first(chunk.length_bytes);
    if (!ReadStoredChunk(base_->snapshot, stored.key, stored.info.stored(), bytes)) return false;
    const TensorView view{
        .dtype = DType::kUInt8, .shape = {bytes.size()}, .strides = {}, .data = bytes.data()};
    return HasPages(chunk, HostPayload(view, 0, bytes.size()));
  }

  /// Requires payload of the length of the chunk.
  bool HasPages(const PlannedChunk& chunk, const HostPayload& other) {
    const HostPayload payload(chunk.source, chunk.begin_bytes, chunk.length_bytes);
    for (uint64_t page = 0; page < kv::PageCount(chunk.length_bytes); ++page) {
      if (!std::ranges::equal(payload.Page(page, pages_[0]), other.Page(page, pages_[1]))) {
        return false;
      }
    }
    return true;
  }

  const kv::StepWriter& writer_;
  const StepView* const base_;
  bool base_was_read_ = false;
  std::unordered_map<kv::Digest, Written, Hash> written_;
  std::unordered_map<kv::Digest, InBase, Hash> in_base_;
  std::vector<std::byte> stored_;  // the chunk that was read last
  std::vector<std::byte> pages_[2] = {std::vector<std::byte>(kv::kPageBytes),
                                      std::vector<std::byte>(kv::kPageBytes)};
};

}  // namespace cairn::core::internal
