#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Tensors in mapped segments, and the check of their bytes.

#include <memory>
#include <optional>
#include <vector>

#include "core/base/progress.h"
#include "core/load/load_options.h"

namespace cairn::core {

/// The check of mapped tensors against their digests. Ownership: keeps the mappings and the records
/// of the chunks alive, and needs neither the step nor the store. Threads: all members are safe.
class MapCheck {
 public:
  /// The chunks to be checked; defined where it is created.
  struct Chunks;
  explicit MapCheck(std::unique_ptr<const Chunks> chunks);
  ~MapCheck();
  MapCheck(const MapCheck&) = delete;
  MapCheck& operator=(const MapCheck&) = delete;

  /// Checks every page of every tensor, on all cores, and returns when all are checked. kDataLoss:
  /// a chunk does not match its digest or cannot be read; names key, file and offset of the first.
  /// kCancelled: `progress` asked to stop.
  Result<void> Run(const Progress& progress = {}) const;

 private:
  std::unique_ptr<const Chunks> chunks_;
};

struct UncheckedMap {
  /// In the order of the request. Empty: the tensor cannot be mapped (CheckpointStore::Map).
  std::vector<std::optional<MappedTensor>> tensors;
  std::shared_ptr<const MapCheck> check;  // check of all tensors; shared with whoever runs it
};

}  // namespace cairn::core
