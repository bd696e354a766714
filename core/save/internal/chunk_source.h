#pragma once
/// Iterates over the chunks of a plan in key order, so that a save can merge them with the chunk
/// records of the base step, which are scanned in the same order.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/save/internal/changed_pages.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/tensor_payload.h"
#include "core/step/contents.h"
#include "core/tensor/tensor.h"
#include "kv/base/digest.h"
#include "kv/base/payload.h"

namespace cairn::core::internal {

/// One chunk of a plan, and the known properties of the same chunk in the base step. Borrows the
/// plan.
struct PlannedChunk {
  size_t shard = 0;   // index into SavePlan::shards
  size_t tensor = 0;  // index into SavePlan::tensors
  const TensorView* source = nullptr;
  std::string key;
  Shape sizes;
  uint64_t begin_bytes = 0;  // in the row-major form of *source
  uint64_t length_bytes = 0;
  kv::SegmentAlignment alignment = kv::SegmentAlignment::kNone;
  std::optional<ChunkInfo> base;       // the chunk with the same key and length, if there is one
  std::vector<uint64_t> page_digests;  // empty until the chunk is digested
  kv::Digest digest;                   // valid if is_digested()
  std::optional<kv::ChunkStatistics> statistics;
  bool may_change = true;            // the caller's memory, to which its other threads may write
  bool has_bytes = true;             // false: not read, because the base has the same bytes
  bool is_stated_unchanged = false;  // by the caller (SaveOptions::unchanged)
  bool is_taken_from_base = false;   // so stated, and not compared
  /// For tensors in device memory: which pages differ from the base; null if that is not known.
  const std::vector<bool>* changed_pages = nullptr;
  std::vector<uint64_t> base_page_digests;  // empty: not read, or not the base's
  std::optional<PageRanges> ranges;         // pages to write, if not all
  std::vector<std::byte> delta;             // to be written in place of pages; empty: none
  bool is_compressed = false;               // `delta` contains all bytes
  kv::Digest delta_base;                    // digest of the bytes to which the delta is relative

  /// True if the chunk may be the same as the base's chunk.
  bool is_candidate() const { return base && has_bytes; }
  bool is_unchanged() const { return base && base->digest == digest; }
  /// True if the base has the chunk in pages of the size that a save writes.
  bool has_base_pages() const { return base && base->extents.page_bytes() == kv::kPageBytes; }
  bool is_on_device() const { return source->device != kHostDevice; }
  HostPayload host_payload() const { return {*source, begin_bytes, length_bytes, may_change}; }
  bool is_digested() const { return !page_digests.empty() || !has_bytes; }
};

/// Returns the alignment of the first chunk of a shard in its segment.
kv::SegmentAlignment FirstAlignment(const PlannedShard& shard);

/// Ownership: borrows the plan, which must not change. Threads: one.
class ChunkSource {
 public:
  explicit ChunkSource(const SavePlan& plan) : plan_(plan) { NextTensor(); }

  /// True if all chunks were taken.
  bool done() const { return at_ == chunks_.size(); }
  /// Returns the next chunk; valid until Take. Requires !done().
  PlannedChunk& Peek();
  /// Returns the next chunk and advances. Requires !done().
  PlannedChunk Take();

 private:
  struct Position {
    size_t shard = 0;
    uint64_t index = 0;
  };
  /// Lists the chunks of the next tensor in key order, in which chunks of several shards may
  /// alternate.
  void NextTensor();
  PlannedChunk Make() const;

  const SavePlan& plan_;
  size_t next_shard_ = 0;         // the first shard that was not in chunks_ yet
  std::vector<Position> chunks_;  // chunks of one tensor
  size_t at_ = 0;                 // in chunks_
  std::optional<PlannedChunk> current_;
};

}  // namespace cairn::core::internal
