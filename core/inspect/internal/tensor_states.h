#pragma once
/// The tensors of one step after another, with what changed from one to the next.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/inspect/stored_statistics.h"
#include "kv/base/chunk_record.h"
#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"

namespace cairn::core::internal {

/// The state that is kept of a chunk.
struct ChunkState {
  uint64_t offsets_checksum = 0;  // checksum of its offsets in the tensor
  uint64_t digest = 0;            // a half of it
  uint64_t length_bytes = 0;
  uint64_t stored_bytes = 0;
  std::optional<kv::ChunkStatistics> values;
};

struct TensorState {
  uint32_t node = 0;  // the caller's node
  std::vector<ChunkState> chunks;
  uint64_t bytes = 0;
  uint64_t stored_bytes = 0;
  uint64_t last_changed_step = 0;
  /// The recorded values, combined from all chunks, which weigh as many bytes as they have; without
  /// a count. Empty if a chunk has none.
  std::optional<StoredStatistics> values;
  // Those of the chunks that have statistics, also if others have none.
  uint64_t nans = 0;
  uint64_t infs = 0;
};

/// By FQN.
using TensorStateMap = std::map<std::string, TensorState, std::less<>>;

/// How a tensor differs from the step before.
struct TensorChange {
  enum class Kind : uint8_t { kAdded, kRemoved, kChanged } kind = Kind::kChanged;
  TensorStateMap::value_type* tensor = nullptr;  // null if it was removed
  uint32_t removed_node = 0;                     // the node of a removed tensor
  /// Bytes in chunks that differ, or have pages of another size: without a read of their bytes, it
  /// is not known whether these differ. All bytes if added or removed; 0 if only the statistics
  /// differ, because a save has added those of unchanged chunks.
  uint64_t changed_bytes = 0;
  // A changed tensor in the step before.
  std::optional<StoredStatistics> values_before;
  uint64_t nans_before = 0;
  uint64_t infs_before = 0;
};

/// Threads: one.
class TensorStates {
 public:
  /// Moves to `step` and returns the changes, in key order, which are valid until the next call.
  /// Reads only what may differ if the tables allow it. After an error, the next call reads all
  /// records. Errors: see Snapshot::Scan; kDataLoss: a record is damaged.
  Result<std::vector<TensorChange>> MoveTo(const kv::Snapshot& snapshot, const kv::StepInfo& step);
  /// Does the same, but afterwards no tensor has changed later than in `step`, which may be older
  /// than the step before.
  Result<std::vector<TensorChange>> StartAgainAt(const kv::Snapshot& snapshot,
                                                 const kv::StepInfo& step);

  TensorStateMap& tensors() { return tensors_; }
  const TensorStateMap& tensors() const { return tensors_; }
  /// Number of steps that were read completely; each replaces all of `tensors`.
  uint64_t complete_reads() const { return complete_reads_; }
  /// Chunk records that were read by all calls.
  uint64_t record_count() const { return record_count_; }

 private:
  /// A chunk that is being read; empty `state` means that the step does not have it.
  struct ReadChunk {
    uint64_t offsets_checksum = 0;
    std::optional<ChunkState> state;
  };
  class Reader;

  Result<std::vector<TensorChange>> ReadAll(const kv::Snapshot& snapshot, const kv::StepInfo& step);
  Result<std::optional<std::vector<TensorChange>>> ReadUnshared(const kv::Snapshot& snapshot,
                                                                const kv::StepInfo& step);

  std::optional<kv::StepInfo> step_;
  TensorStateMap tensors_;
  std::set<std::string, std::less<>> long_values_;  // FQNs; their chunks are not those of tensors
  uint64_t complete_reads_ = 0;
  uint64_t record_count_ = 0;
};

}  // namespace cairn::core::internal
