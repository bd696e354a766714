#pragma once
/// The tensors of one step after another, with what changed from one to the next.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

/// The recorded values of a tensor, combined from its chunks.
struct TensorValues {
  bool is_known = false;  // all chunks have values
  double min = std::numeric_limits<double>::quiet_NaN();
  double max = std::numeric_limits<double>::quiet_NaN();
  double mean = 0;  // mean of the finite values; chunks weigh as many bytes as they have
  uint64_t zeros = 0;
  uint64_t nans = 0;
  uint64_t infs = 0;

  /// Largest absolute value, finite or infinite; 0 if there are none.
  double abs_max() const;
};

struct TensorState {
  std::string fqn;
  uint32_t node = 0;  // the caller's node
  size_t first_chunk = 0;
  size_t chunk_count = 0;
  uint64_t bytes = 0;
  uint64_t stored_bytes = 0;
  uint64_t last_changed_step = 0;
  TensorValues values;
};

/// How a tensor differs from the step before.
struct TensorChange {
  enum class Kind : uint8_t { kAdded, kRemoved, kChanged } kind = Kind::kChanged;
  size_t tensor = 0;           // index in tensors(); not for removed ones
  uint32_t removed_node = 0;   // the node of a removed tensor
  uint64_t changed_bytes = 0;  // bytes in chunks that differ; all bytes if added or removed
  // The values of a changed tensor in the step before:
  bool were_known = false;
  bool had_nans = false;
  bool had_infs = false;
  double mean_before = 0;
  double abs_max_before = 0;

  void SetBefore(const TensorValues& values);
};

/// Threads: one.
class TensorStates {
 public:
  /// Moves to `step` and returns the changes, in key order. Reads only what may differ if the
  /// tables allow it. After an error, the next call reads all records. Errors: see Snapshot::Scan;
  /// kDataLoss: a record is damaged.
  Result<std::vector<TensorChange>> MoveTo(const kv::Snapshot& snapshot, const kv::StepInfo& step);
  /// Does the same, but afterwards no tensor has changed later than in `step`, which may be older
  /// than the step before.
  Result<std::vector<TensorChange>> StartAgainAt(const kv::Snapshot& snapshot,
                                                 const kv::StepInfo& step);

  /// In key order.
  std::vector<TensorState>& tensors() { return tensors_; }
  const std::vector<TensorState>& tensors() const { return tensors_; }
  /// Returns a tensor, or null.
  const TensorState* Find(std::string_view fqn) const;
  /// Records that were read by all calls.
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
  std::span<const ChunkState> ChunksOf(const TensorState& tensor) const {
    return std::span(chunks_).subspan(tensor.first_chunk, tensor.chunk_count);
  }
  /// Replaces the chunks of a tensor, and adds up what they have.
  static void SetChunks(std::span<const ChunkState> chunks, std::vector<ChunkState>& all,
                        TensorState& tensor);
  /// Applies the chunks of one FQN that were read. New tensors are added to `added`.
  void Apply(std::string_view fqn, std::span<const ReadChunk> read,
             std::vector<TensorChange>& changes, std::vector<TensorState>& added);
  /// Inserts `added` and removes tensors without chunks; adjusts the indices in `changes`.
  void Merge(std::vector<TensorState> added, std::vector<TensorChange>& changes);
  void RemoveGarbage();

  std::optional<kv::StepInfo> step_;
  std::vector<TensorState> tensors_;  // in key order
  std::vector<ChunkState> chunks_;    // chunks of the tensors, and of earlier steps
  uint64_t record_count_ = 0;
};

}  // namespace cairn::core::internal
