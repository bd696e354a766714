#pragma once
/// What a save is asked, and what it reports.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/progress.h"
#include "core/device/device.h"
#include "core/sharding/mesh.h"
#include "core/tensor/chunk_grid.h"

namespace cairn::core {

struct SaveOptions {
  bool overwrite = false;
  /// The step whose unchanged chunks are referenced; by default the latest step.
  std::optional<uint64_t> base_step;
  bool incremental = true;  // false: write every byte, compare with nothing
  uint64_t chunk_bytes = kDefaultChunkBytes;
  Progress progress;
  /// Several ranks: the time from the call on within which all must have written their part.
  std::chrono::milliseconds deadline = std::chrono::minutes(30);
  /// Several ranks: those that hold the same plain tensors as this one, which share the writing of
  /// them; by default all. A pipeline stage whose tensors are no DTensors gives its ranks.
  std::shared_ptr<const DeviceMesh> plain_mesh;  // shared with the caller
  /// Tensors in device memory: the streams whose work makes them what is to be saved; nothing else
  /// is waited for. For devices that are not named, the default stream.
  std::vector<DeviceStream> streams;
  /// AsyncSaver: copy what changed within the device's memory first, if so much is free, so that
  /// the streams may go on with their next work once that is done.
  bool device_snapshot = false;
};

/// What this process wrote; of several ranks each tells its own part.
struct SaveReport {
  uint64_t step = 0;
  uint64_t logical_bytes = 0;  // tensors, shared storage counted once
  uint64_t written_bytes = 0;  // payload put into segments
  uint64_t device_bytes = 0;   // payload brought from devices to the host
  uint64_t direct_bytes = 0;   // of written_bytes, what devices wrote to the segments themselves
  uint64_t chunks = 0;
  uint64_t chunks_reused = 0;
  double seconds = 0;
};

}  // namespace cairn::core
