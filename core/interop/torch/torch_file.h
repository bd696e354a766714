#pragma once
/// Files of torch.save, read without running anything that is pickled in them.
///
/// What `torch.load(weights_only=True)` takes and a state dict can hold is read: nested dicts,
/// OrderedDicts, Counters, lists, tuples, torch.Size, tensors and parameters of every dtype with
/// the storage that they share, None, bool, int, float, complex, str, bytes. Everything else that a
/// pickle names is refused by its name, or left out.

#include <string>

#include "core/interop/torch/imported_state.h"

namespace cairn::core {

/// Checks every byte against the archive's checksums, if it has any. kDataLoss: no file of
/// torch.save, or a damaged one. kUnimplemented: it holds an object of another class, names class
/// and key; the format of before torch 1.6; TorchScript. kNotFound, kUnavailable: it cannot be
/// opened. Memory: the pickle's, some times over; tensors stay in the file.
Result<ImportedState> ReadTorchFile(const std::string& path, const ImportOptions& options = {});

}  // namespace cairn::core
