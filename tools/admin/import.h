#pragma once
/// `kv-admin import`: creates a step from checkpoints of other programs.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "tools/admin/conversion.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct ImportOptions {
  std::string store;
  uint64_t step = 0;
  /// Safetensors and torch.save files, their *.index.json, torch.distributed.checkpoint
  /// directories.
  std::vector<std::string> files;
  std::string format;  // hf: one directory of a model; empty: each file is recognized
  std::string prefix;  // the map of the state dict that receives the tensors; empty: the root
  std::optional<uint64_t> base_step;
  bool overwrite = false;
  std::vector<std::string> tags;  // name the step from now on
  ConversionOptions conversion;
  bool skip_unknown = false;  // omit objects that a store cannot hold
};

/// Saves what the files contain as one step, and prints what was saved and what was omitted.
Result<void> AdminImport(const ImportOptions& options, Output& out);

}  // namespace cairn::tools
