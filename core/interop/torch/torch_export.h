#pragma once
/// Exports steps as files of torch.save, which `torch.load(path, weights_only=True)` opens.

#include <cstdint>
#include <string>

#include "core/base/progress.h"
#include "core/payload_reader.h"
#include "core/step/contents.h"
#include "kv/error.h"

namespace cairn::core {

class CheckpointStore;

struct TorchExportReport {
  uint64_t tensors = 0;
  uint64_t bytes = 0;  // of storages: tensors that share memory are counted once
  uint64_t values = 0;
  uint64_t arrays = 0;  // numpy arrays and scalars, which became tensors
  double seconds = 0;
};

/// Writes `contents` (from List) as one nested state of containers, tensors and plain values.
/// Tensors that share memory share a storage. Writes a temporary file, then syncs and renames it;
/// after an error no file remains. `load` loads the tensors; empty: CheckpointStore::Load.
///
/// kInvalidArgument: weights_only does not accept a pickled object, an int of more than 255 bytes
/// or a text that is not UTF-8; nothing is written, and the error names the key where there is one.
/// kNotFound, kUnavailable, kResourceExhausted: the file cannot be created or written. Errors of
/// reading the step: those of CheckpointStore::Load. Memory: a few times that of the pickle, plus
/// that of ReadRowMajor.
Result<TorchExportReport> ExportTorch(const CheckpointStore& store, const Contents& contents,
                                      const std::string& path, const Progress& progress = {},
                                      const RequestLoader& load = {});

}  // namespace cairn::core
