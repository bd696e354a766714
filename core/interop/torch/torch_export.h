#pragma once
/// Steps as files of torch.save, which `torch.load(path, weights_only=True)` opens.

#include <cstdint>
#include <string>

#include "core/checkpoint_store.h"

namespace cairn::core {

struct TorchExportReport {
  uint64_t tensors = 0;
  uint64_t bytes = 0;  // of storages: tensors that share memory counted once
  uint64_t values = 0;
  uint64_t arrays = 0;  // numpy arrays and scalars, which became tensors
  double seconds = 0;
};

/// Writes `contents` (from List) as one nested state: containers, tensors, plain values; tensors
/// that share memory share their storage. A temporary beside `path`, synced and renamed; after an
/// error nothing is left of it. kInvalidArgument: a pickled object or an int of more than 255
/// bytes, which weights_only does not take, before anything is written; names the key. Errors else
/// as CheckpointStore::Load. Memory: the pickle's, and that of ReadRowMajor.
Result<TorchExportReport> ExportTorch(const CheckpointStore& store, const Contents& contents,
                                      const std::string& path, const Progress& progress = {});

}  // namespace cairn::core
