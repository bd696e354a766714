#pragma once
/// What a load is asked, and what it reports.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/device/device.h"
#include "core/sharding/sharding.h"
#include "core/tensor/tensor.h"
#include "kv/mapping.h"

namespace cairn::core {

class Communicator;

/// One box of one tensor to be read. `target.shape` equals `box.sizes`; dtype must be the stored
/// one.
struct LoadRequest {
  std::string fqn;
  Box box;
  TensorTarget target;
};

/// A tensor to be filled with its part on this rank.
struct ShardTarget {
  std::string fqn;
  /// The mesh, placements or boxes of now, whatever it was saved with; null: the whole tensor. The
  /// views of explicit boxes are written through.
  const Sharding* sharding = nullptr;
  TensorTarget local;
};

struct ShardLoadOptions {
  /// Boxes that several ranks need are read from storage by one of them and passed on through the
  /// communicator of OpenShared. Every rank must call then, with the same step and the same keys in
  /// the same order (stages of a pipeline, whose meshes have no rank in common: each with its own);
  /// kInvalidArgument on all ranks if they do not. Else each rank reads all that it needs, and may
  /// call alone.
  bool read_once = false;
  /// read_once: memory for passing bytes on, of the host or the communicator's device.
  uint64_t buffer_bytes = 64 << 20;
  Progress progress;
  /// For targets in device memory, as Load has them.
  std::vector<DeviceStream> streams;
  /// read_once: passes bytes on in place of the communicator of OpenShared, which all else still
  /// goes over; of the same ranks in the same order. All ranks give one, or none does.
  Communicator* tensor_communicator = nullptr;
};

struct LoadReport {
  uint64_t bytes_read = 0;    // taken from storage, page rounding included
  uint64_t direct_bytes = 0;  // of these, what devices read from the segments themselves
  double seconds = 0;
};

/// A tensor's bytes inside a mapped segment. Keeps the mapping alive.
struct MappedTensor {
  std::shared_ptr<const kv::Mapping> mapping;
  std::span<const std::byte> bytes;  // row-major
};

}  // namespace cairn::core
