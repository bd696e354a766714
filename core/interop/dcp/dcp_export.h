#pragma once
/// Steps as directories of torch.distributed.checkpoint, which `dcp.load` opens.

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"

namespace cairn::core {

struct DcpExportOptions {
  uint64_t max_file_bytes = 5'000'000'000;  // a larger selection becomes several data files
  Progress progress;
};

struct DcpExportReport {
  std::vector<std::string> files;  // paths of all that was written, `.metadata` last
  uint64_t tensors = 0;
  uint64_t bytes = 0;  // of tensors; those that share memory counted each
  uint64_t values = 0;
  uint64_t arrays = 0;  // numpy arrays and scalars, which became tensors
  double seconds = 0;
};

/// Writes `contents` (from List) into the directory `folder`, which is made if absent, as one
/// process writes it by `dcp.save(state, storage_writer=FileSystemWriter(folder))`: flattened as
/// DCP flattens, with string keys, every tensor an item of its own, row-major; lists without
/// tensors and tuples one pickled item each. A checkpoint that the directory holds is replaced: at
/// any time, crashes included, the old one or the new one is there, whole. After an error nothing
/// new is left. kInvalidArgument, before anything is written: a step that is no dict, two values of
/// one flat key, or as ExportTorch. Errors else as CheckpointStore::Load. Memory: some hundred
/// bytes a tensor, the pickled values, and that of ReadRowMajor.
Result<DcpExportReport> ExportDcp(const CheckpointStore& store, const Contents& contents,
                                  const std::string& folder, const DcpExportOptions& options = {});

}  // namespace cairn::core
