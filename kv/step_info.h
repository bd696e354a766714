#pragma once
/// What the index knows of steps and segments.

#include <cstdint>
#include <optional>
#include <string>

#include "kv/digest.h"
#include "kv/error.h"

namespace cairn::kv {

/// A committed step.
struct StepInfo {
  uint64_t step = 0;
  uint64_t generation = 0;
  int64_t created_unix_ns = 0;
  uint32_t world_size = 1;
  std::string attempt;
  std::optional<uint64_t> base_step;
  uint64_t tensor_count = 0;
  uint64_t value_count = 0;
  uint64_t chunk_count = 0;
  uint64_t reused_chunk_count = 0;
  uint64_t logical_bytes = 0;
  uint64_t written_bytes = 0;
  Digest structure;
};

/// A sealed segment as the index knows it.
struct SegmentInfo {
  uint64_t segment_id = 0;
  std::string name;  // below segments/
  uint64_t step = 0;
  uint32_t rank = 0;
  uint64_t file_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t chunk_count = 0;
  uint64_t footer_digest = 0;
  uint64_t page_digests_checksum = 0;
};

/// Live bytes of one segment in one step's generation.
struct Usage {
  uint64_t segment_id = 0;
  uint64_t generation = 0;
  uint64_t live_bytes = 0;
};

/// One problem that Verify found.
struct Damage {
  Error error;
};

}  // namespace cairn::kv
