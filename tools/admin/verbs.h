#pragma once
/// The verbs of kv-admin. Each prints what it did to `out`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools::internal {

struct ImportOptions {
  std::string store;
  uint64_t step = 0;
  /// Safetensors and torch.save files, their *.index.json, torch.distributed.checkpoint directories.
  std::vector<std::string> files;
  std::string prefix;  // a map of the state dict to put the tensors into; empty: the root
  std::optional<uint64_t> base_step;
  bool overwrite = false;
  bool skip_unknown = false;  // leave out what no store can hold
};
Result<void> AdminImport(const ImportOptions& options, Output& out);

struct ExportOptions {
  std::string address;
  std::string target;
  std::string format;  // safetensors, torch or dcp; empty: as the target's name says
  std::vector<std::string> patterns;
  uint64_t shard_bytes = 5'000'000'000;
  bool overwrite = false;
};
Result<void> AdminExport(const ExportOptions& options, Output& out);

struct DeleteOptions {
  std::string store;
  std::vector<uint64_t> steps;
  bool dry_run = false;
};
Result<void> AdminDelete(const DeleteOptions& options, Output& out);

/// kDataLoss if a step could not be put back; the others are.
Result<void> AdminRebuildIndex(const std::string& store, Output& out);

}  // namespace cairn::tools::internal
