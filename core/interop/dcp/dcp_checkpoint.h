#pragma once
/// Directories of torch.distributed.checkpoint, read by one process and without unpickling anything
/// but DCP's own description of them.

#include <string>

#include "core/interop/torch/imported_state.h"

namespace cairn::core {

/// True for a directory with a `.metadata`, one of `__R.metadata` (see below), and such a file.
bool LooksLikeDcpCheckpoint(const std::string& path);

/// The state that was given to `dcp.save`, as nested as it was: tensors made of the chunks that the
/// ranks wrote, values from their pickles (what core/interop/torch/torch_file.h says of files holds for them).
/// `path` is the directory. With use_collectives=False every rank wrote a checkpoint of its own:
/// then `path` is the `__R.metadata` of the rank to read.
///
/// Both formats of items, torch.save's and safetensors, are read; bytes of the former are checked
/// against their checksums. kDataLoss: damaged, or chunks that do not make up their tensor.
/// kUnimplemented: items that went through an extension (compression), a class that no state dict
/// can hold; names key and file. Memory: the metadata's, some times over; tensors stay in the
/// files.
Result<ImportedState> ReadDcpCheckpoint(const std::string& path, const ImportOptions& options = {});

}  // namespace cairn::core
