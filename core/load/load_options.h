#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Requests, options and reports of loads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/progress.h"
#include "core/device/device.h"
#include "core/tensor/sharding.h"
#include "core/tensor/tensor.h"
#include "kv/base/mapping.h"

namespace cairn::core {

class Communicator;

/// Requests one box of one tensor. `target.shape` equals `box.sizes`, and `target.dtype` is the
/// stored dtype unless `cast` is set.
struct LoadRequest {
  std::string fqn;
  Box box;
  TensorTarget target;
  /// Converts elements to the target's dtype, if this is another one (core/tensor/element_cast.h).
  /// The target is in host memory.
  bool cast = false;
  /// CheckpointStore::Update: false for new memory, which is filled completely.
  bool has_base = true;
};

/// Requests a box in host memory, where its elements follow each other in row-major order.
inline LoadRequest RowMajorRequest(std::string fqn, DType dtype, Box box, std::byte* data) {
  TensorTarget target{.dtype = dtype, .shape = box.sizes, .data = data};
  return {.fqn = std::move(fqn), .box = std::move(box), .target = std::move(target)};
}

/// Requests the part of a tensor that this rank holds.
struct ShardTarget {
  std::string fqn;
  /// The mesh and placements, or the explicit boxes, of the load; the save may have used others.
  /// Null: the whole tensor. The load writes to the views of explicit boxes.
  const Sharding* sharding = nullptr;
  TensorTarget local;
};

struct ShardLoadOptions {
  /// True: boxes that several ranks need are read from storage by one of them, which sends them to
  /// the others through the communicator of OpenShared. The load is collective then: every rank
  /// calls it with the same step and the same keys in the same order (pipeline stages, whose meshes
  /// have no rank in common, each with their own keys); otherwise all ranks get kInvalidArgument.
  /// False: each rank reads all that it needs and may call alone.
  bool read_once = false;
  /// read_once: the size of the buffer for sending and receiving, in host memory or in the memory
  /// of the communicator's device.
  uint64_t buffer_bytes = 64 << 20;
  /// read_once: how much a rank reads, in one window, while it sends the window before. Requires at
  /// least 1. All ranks use as many windows as the rank that needs the most.
  uint64_t window_bytes = 128 << 20;
  Progress progress;
  /// For targets in device memory: the streams after whose work the targets are written. For a
  /// device that is not named: its default stream.
  std::vector<DeviceStream> streams;
  /// read_once: sends the bytes of tensors instead of the communicator of OpenShared, which still
  /// sends everything else. It has the same ranks in the same order. Either all ranks give one or
  /// none does.
  Communicator* tensor_communicator = nullptr;
};

struct LoadReport {
  uint64_t bytes_read = 0;  // from storage, including what is read to complete pages
  double seconds = 0;
};

/// The changes of an update in place.
struct UpdateReport {
  std::vector<std::string> changed;  // FQNs of the requests whose tensors differ, ascending
  uint64_t compared_bytes = 0;       // memory that was compared with the base step
  uint64_t bytes_read = 0;           // from storage
  double seconds = 0;
};

/// The bytes of a tensor in a mapped segment. Keeps the mapping alive.
struct MappedTensor {
  std::shared_ptr<const kv::Mapping> mapping;  // shared by the tensors in one segment
  std::span<const std::byte> bytes;            // row-major
};

}  // namespace cairn::core
