#pragma once
/// Reads directories of torch.distributed.checkpoint (DCP) in one process, without running any code
/// that is pickled in them.

#include <string>

#include "core/interop/torch/imported_state.h"

namespace cairn::core {

/// True for a directory that contains `.metadata` or `__0.metadata`, and for such a file.
bool LooksLikeDcpCheckpoint(const std::string& path);

/// Reads the nested state that was passed to `dcp.save`: tensors from the chunks that the ranks
/// wrote, values from their pickles (with the types of core/interop/torch/torch_file.h). `path` is
/// the directory. If the checkpoint was saved with use_collectives=False, each rank wrote its own
/// checkpoint, and `path` is the `__R.metadata` of the rank to read.
///
/// Reads both formats of items, torch.save and safetensors, and verifies the checksums of the
/// former. kDataLoss: the checkpoint is damaged, or the chunks of a tensor are incomplete.
/// kUnimplemented: items were written with an extension (compression), or contain a class that no
/// state dict can hold; the error names key and file. kInvalidArgument: `path` is a directory of
/// checkpoints of single ranks. kNotFound, kUnavailable: a file cannot be opened. kCancelled: the
/// progress callback asked to stop. Memory: several times that of the metadata; tensors stay in the
/// files.
Result<ImportedState> ReadDcpCheckpoint(const std::string& path, const ImportOptions& options = {});

}  // namespace cairn::core
