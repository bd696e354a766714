#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The records of a store about steps and segments, and what ranks exchange about a step.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/base/key.h"

namespace cairn::kv {

/// Names a run: steps of which each continues from the one before, also after a restart.
using RunId = std::array<std::byte, 16>;

/// A step from which another one continued. It may have been deleted since, or be in another store.
struct ParentStep {
  uint64_t step = 0;
  std::string attempt;  // no other step of any store has it, and a copy keeps it
  friend bool operator==(const ParentStep&, const ParentStep&) = default;
};

/// A committed step.
struct StepInfo {
  uint64_t step = 0;
  uint64_t generation = 0;  // number of the root that added the step; each commit has a new one
  int64_t created_unix_ns = 0;
  uint32_t world_size = 1;
  std::string attempt;                // from Store::NextAttempt
  std::optional<uint64_t> base_step;  // the step with which chunks were compared
  uint64_t tensor_count = 0;
  uint64_t value_count = 0;
  uint64_t chunk_count = 0;
  uint64_t reused_chunk_count = 0;  // chunks that refer to the payload of the base
  uint64_t logical_bytes = 0;       // payload of all chunks
  uint64_t written_bytes = 0;       // payload that the step added to segments, without padding
  Digest structure;                 // digest of the StructureRecord
  std::vector<Metric> metrics;
  std::string note;
  std::optional<ParentStep> parent;
  std::optional<RunId> run;  // absent only in a step that was recovered from footers
  // A compaction gives the records that it rewrites a higher number each time. The step keeps its
  // generation, because its contents are the same. 0: no compaction has rewritten the step.
  uint64_t rewritten = 0;

  /// Returns whether both refer to the same records, with the same locations of payload.
  bool HasRecordsOf(const StepInfo& other) const {
    return step == other.step && generation == other.generation && rewritten == other.rewritten;
  }
};

/// A sealed segment, as the steps that use it record it.
struct SegmentInfo {
  uint64_t segment_id = 0;  // the first 64 of its 96 bits, to which extents refer
  uint32_t id_tail = 0;     // the other 32 bits
  uint32_t epoch = 0;       // the writer's epoch
  std::string name;         // in segments/
  uint64_t step = 0;
  uint32_t rank = 0;
  uint64_t file_bytes = 0;
  uint64_t payload_bytes = 0;
  uint64_t chunk_count = 0;
  uint64_t footer_digest = 0;          // Checksum64 of the footer
  uint64_t page_digests_checksum = 0;  // Checksum64 of all page digests
};

/// The bytes of one segment to which the chunks of one step refer.
struct Usage {
  uint64_t segment_id = 0;
  uint64_t generation = 0;
  uint64_t live_bytes = 0;
};

/// One problem that Snapshot::VerifyFiles found.
struct Damage {
  Error error;
};

/// A record that several ranks have with equal contents, such as a replicated value.
struct SharedRecord {
  Column column = Column::kValues;
  std::string key;
  std::vector<std::byte> value;
};

/// A chunk that another rank has written.
struct RankChunk {
  uint32_t rank = 0;
  std::string_view fqn;
  uint64_t length_bytes = 0;
  std::span<const uint64_t> offsets;  // in elements, as many as sizes
  std::span<const uint64_t> sizes;
};

/// Receives what other ranks have contributed to a step. Everything that is passed is valid only
/// during the call.
class RankRecords {
 public:
  virtual ~RankRecords() = default;
  /// Adds a shared record that `rank` has. The shared records of a rank precede its chunks.
  virtual Result<void> AddShared(uint32_t rank, Column column, std::string_view key,
                                 std::span<const std::byte> value) = 0;
  /// Adds a chunk, whose record is verified.
  virtual Result<void> AddChunk(const RankChunk& chunk) = 0;
};

/// The caller's description of a step, or of one rank's part of it, when it commits the step.
struct StepSummary {
  std::optional<uint64_t> base_step;
  uint64_t tensor_count = 0;
  uint64_t value_count = 0;
  uint64_t logical_bytes = 0;
};

/// Returns the kConflict of a save of `step` whose base was deleted or replaced during the save.
inline Error BaseReplacedError(uint64_t step) {
  return Error{.code = ErrorCode::kConflict,
               .message =
                   "the base step, to which this save refers, was deleted or replaced during "
                   "the save; save again",
               .step = step};
}

}  // namespace cairn::kv
