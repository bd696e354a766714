#pragma once
/// `kv-admin export`: writes a step to safetensors files, a file of torch.save, or a directory of
/// torch.distributed.checkpoint.

#include <cstdint>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "tools/admin/conversion.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct ExportOptions {
  std::string address;
  std::string target;
  std::string format;  // safetensors, torch, dcp or hf; empty: depends on the name of the target
  std::vector<std::string> patterns;
  ConversionOptions conversion;  // the patterns select the keys after it
  uint64_t shard_bytes = 5'000'000'000;
  bool overwrite = false;
  std::string since;    // a step or a tag: export only what differs from it
  bool sparse = false;  // export only the changed elements of tensors
};

/// Exports the keys that match the patterns (all if there are none), and prints what was written.
Result<void> AdminExport(const ExportOptions& options, Output& out);

}  // namespace cairn::tools
