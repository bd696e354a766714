#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Options and report of a save.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/device/device.h"
#include "core/step/application_records.h"
#include "core/tensor/chunk_grid.h"
#include "core/tensor/mesh.h"
#include "kv/base/annotations.h"
#include "kv/base/error.h"
#include "kv/base/options.h"

namespace cairn::core {

class StateDict;

struct SaveOptions {
  /// Replaces the step if it exists; otherwise the save fails with kConflict.
  bool overwrite = false;
  /// The base step, whose unchanged chunks are referenced instead of written again; the latest step
  /// if empty.
  std::optional<uint64_t> base_step;
  /// False: writes every byte and compares with no base step.
  bool incremental = true;
  /// Patterns (core/state_dict/key_pattern.h) of tensors of which the caller states that they have
  /// not changed since the base step. Where the base has the same chunk, it is referenced and the
  /// tensor is neither read nor copied; otherwise the tensor is saved as without this option. A
  /// statement that is wrong stores the old values. To find such errors, each save compares one of
  /// these chunks, another one for each step; if it differs, the save fails with kInvalidArgument.
  /// For tensors in host memory; others are compared on their device.
  std::vector<std::string> unchanged = {};
  /// The largest number of deltas of a chunk, at most kv::kMaxDeltas; 0 writes none. A delta
  /// contains only the elements that changed, where this is much less than the changed pages. The
  /// pages of the base that changed are read for the comparison. Tensors on devices have none.
  uint32_t max_deltas = 0;
  /// Finds chunks with equal bytes under other keys, in this state and, for new keys, in the base
  /// step; compares them; and stores them once. All bytes are digested before they are written, and
  /// shared chunks of the base are read.
  bool share_equal = false;
  /// Compresses chunks that are written completely, where this saves at least a 20th of their
  /// bytes: the bytes of the elements, sorted by position, with zstd (docs/compression.md). Chunks
  /// in device memory are not compressed. If empty, `compress_if_fast` decides or, if that is
  /// false, the setting of the store (kv::Store::SetCompression).
  std::optional<bool> compress;
  /// Compresses unless the saves through this store write faster without, as measured: the first
  /// save does not compress, the second does, and later ones do what was faster. Every 16th tries
  /// the other way. In a multi-rank store each rank decides for its own chunks.
  bool compress_if_fast = false;
  /// Records the statistics of each chunk (kv/base/chunk_record.h), which are computed when its
  /// bytes are digested. A state with tensors in device memory is refused with kInvalidArgument.
  bool statistics = false;
  /// Largest length of a chunk; at most 1 GiB.
  uint64_t chunk_bytes = kDefaultChunkBytes;
  /// Recorded with the step, and shown by kv-dump. In a multi-rank store, only rank 0's count.
  std::vector<kv::Metric> metrics = {};
  std::string note = {};
  std::vector<std::string> tags = {};  // name this step from now on, and no other
  /// The step from which this one continues, and the run (kv::BeginOptions). If absent: the step
  /// that this store has loaded or saved last, otherwise the newest one; and its run.
  std::optional<uint64_t> parent = {};
  std::optional<kv::RunId> run = {};
  /// Records of applications (core/step/application_records.h), which the step has besides the
  /// state. In a multi-rank store, only rank 0's count.
  ApplicationRecords records = {};
  Progress progress;
  /// Called once the tensors in host memory have been read, or, by AsyncSaver, staged; by StepPart
  /// for each portion. An error fails the save. For callers that cannot keep others from freeing
  /// the memory of the tensors, and can only find it out.
  std::function<Result<void>()> check_memory;
  /// AsyncSaver: called before tensors in host memory are read, with the addresses at which they
  /// begin. An error fails the save. For callers that do not yet keep the memory of all tensors.
  std::function<Result<void>(std::span<const std::byte* const>)> hold_memory;
  /// In a multi-rank store: the time from the call on within which all ranks must have written
  /// their parts.
  std::chrono::milliseconds deadline = std::chrono::minutes(30);
  /// In a multi-rank store: the ranks that hold the same tensors without a Sharding as this one and
  /// share the writing of them; all ranks if null. A pipeline stage whose tensors are not DTensors
  /// names its own ranks.
  std::shared_ptr<const DeviceMesh> replicated_mesh;  // shared with the caller
  /// For tensors in device memory: the streams whose work produces the values to be saved. The save
  /// waits for no other work. For a device that is not named: its default stream.
  std::vector<DeviceStream> streams;
  /// AsyncSaver: copies what has changed within the device's memory first, if that much memory is
  /// free, so that the streams may continue as soon as these copies are done.
  bool device_snapshot = false;
};

/// The report of a save in this process. In a multi-rank store each rank reports its own part.
struct SaveReport {
  uint64_t step = 0;
  uint64_t logical_bytes = 0;  // bytes of tensors; shared storage is counted once
  uint64_t written_bytes = 0;  // payload written to segments
  uint64_t device_bytes = 0;   // payload copied from devices to the host
  uint64_t chunks = 0;
  uint64_t chunks_reused = 0;
  double seconds = 0;
};

/// Returns the kInvalidArgument that CheckpointStore::Save would return whatever the store
/// contains. For callers that create a store only if they have something to save. Cost: plans the
/// save, and reads no payload. kResourceExhausted: not enough memory.
Result<void> CheckSave(const StateDict& state, const SaveOptions& options);

}  // namespace cairn::core
