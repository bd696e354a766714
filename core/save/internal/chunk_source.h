#pragma once
/// The chunks of a plan, one at a time, in key order: what MergeWithBase compares with the chunk
/// records of the base step.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/save/internal/page_ranges.h"
#include "core/save/internal/save_plan.h"
#include "core/step/contents.h"
#include "core/tensor/tensor.h"
#include "kv/digest.h"
#include "kv/payload.h"

namespace cairn::core::internal {

/// One chunk to be written, and what is known about the same chunk in the base step.
struct PlannedChunk {
  size_t shard = 0;   // index into SavePlan::pieces
  size_t tensor = 0;  // index into SavePlan::tensors
  const TensorView* source = nullptr;
  std::string key;
  Shape sizes;
  uint64_t begin_bytes = 0;  // in the row-major payload from source->data on
  uint64_t length_bytes = 0;
  kv::SegmentAlignment alignment = kv::SegmentAlignment::kNone;
  std::optional<ChunkInfo> base;
  std::vector<uint64_t> page_digests;  // of candidates
  kv::Digest digest;
  bool has_bytes = true;  // false: the digest is known and must be that of the base
  /// For tensors in device memory: the pages that differ from the base's; null: not known.
  const std::vector<bool>* changed_pages = nullptr;
  std::optional<PageRanges> ranges;  // pages to write, if not all

  /// True if its digest must be compared with that of the base.
  bool is_candidate() const { return base && has_bytes; }
  bool is_unchanged() const { return base && base->digest == digest; }
  bool is_on_device() const { return source->device != kHostDevice; }
  bool is_digested() const { return !page_digests.empty() || !has_bytes; }
};

/// Ownership: borrows the plan. Threads: one.
class ChunkSource {
 public:
  explicit ChunkSource(const SavePlan& plan) : plan_(plan) { NextTensor(); }

  bool done() const { return at_ == chunks_.size(); }
  /// The next chunk; the same one until Take. Requires !done().
  PlannedChunk& Peek();
  PlannedChunk Take();

 private:
  struct Position {
    size_t shard = 0;
    uint64_t index = 0;
  };
  /// Lists the chunks of the next tensor that has some; those of several shards may alternate.
  void NextTensor();
  PlannedChunk Make() const;

  const SavePlan& plan_;
  size_t next_shard_ = 0;          // the first that is not yet in chunks_
  std::vector<Position> chunks_;   // of one tensor
  size_t at_ = 0;                  // in chunks_
  std::optional<PlannedChunk> current_;
};

}  // namespace cairn::core::internal
