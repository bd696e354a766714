#pragma once
/// Exports steps as directories of torch.distributed.checkpoint (DCP), which `dcp.load` opens.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/payload_reader.h"
#include "core/step/contents.h"
#include "kv/error.h"

namespace cairn::core {

class CheckpointStore;

struct DcpExportOptions {
  uint64_t max_file_bytes = 5'000'000'000;  // larger selections become several data files
  Progress progress;
  RequestLoader load = {};  // of the tensors; empty: CheckpointStore::Load
};

struct DcpExportReport {
  std::vector<std::string> files;  // paths of the files that were written, `.metadata` last
  uint64_t tensors = 0;
  uint64_t bytes = 0;  // of tensors; tensors that share memory are each counted in full
  uint64_t values = 0;
  uint64_t arrays = 0;  // numpy arrays and scalars, which became tensors
  double seconds = 0;
};

/// Writes `contents` (from List) to the directory `folder`, which is created if it does not exist,
/// as `dcp.save(state, storage_writer=FileSystemWriter(folder))` in one process does. The state is
/// flattened as DCP flattens it, with string keys. Every tensor is an item, row-major; every tuple
/// and every list without tensors is one pickled item.
///
/// A checkpoint in the directory is replaced: at any time, also after a crash, the directory
/// contains the complete old one or the complete new one. After an error no new file remains.
///
/// kInvalidArgument: the step is not a dict, two values have the same flat key, `folder` is a file,
/// or weights_only does not accept a value (see ExportTorch); the error names the key where there
/// is one. kNotFound, kUnavailable, kResourceExhausted: a file cannot be created or written. Errors
/// of reading the step: those of CheckpointStore::Load. Memory: a few hundred bytes per tensor, the
/// pickled values, and that of ReadRowMajor.
Result<DcpExportReport> ExportDcp(const CheckpointStore& store, const Contents& contents,
                                  const std::string& folder, const DcpExportOptions& options = {});

}  // namespace cairn::core
