#pragma once
/// Reads files of torch.save without running any code that is pickled in them.
///
/// Everything is read that `torch.load(weights_only=True)` accepts and a state dict can hold:
/// nested dicts, OrderedDicts, Counters, lists, tuples, torch.Size, tensors and parameters of every
/// dtype with the storage that they share, None, bool, int, float, complex, str, bytes. Everything
/// else is refused by its name, or left out.

#include <string>

#include "core/interop/torch/imported_state.h"

namespace cairn::core {

/// Reads a file, and verifies every byte against the archive's checksums if it has any. kDataLoss:
/// it is not a file of torch.save, or a damaged one. kUnimplemented: it contains an object of
/// another class (the error names class and key), is in the format before torch 1.6, or contains
/// TorchScript. kNotFound, kUnavailable: it cannot be opened. kCancelled: the progress callback
/// asked to stop. Memory: several times that of the pickle; tensors stay in the file.
Result<ImportedState> ReadTorchFile(const std::string& path, const ImportOptions& options = {});

}  // namespace cairn::core
