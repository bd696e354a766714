#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Exports what changed between two steps as a safetensors file, for engines that serve a model.

#include <cstdint>
#include <string>

#include "core/base/progress.h"
#include "core/state_dict/key_pattern.h"
#include "core/step/contents.h"
#include "kv/base/error.h"

namespace cairn::core {

class CheckpointStore;

struct SafetensorsUpdateOptions {
  KeyPatterns patterns;  // the patterns of the contents
  /// A tensor that has its dtype and shape in both steps becomes two tensors: the flat positions of
  /// the elements that changed, and their values; unless they would be longer than the tensor.
  bool sparse = false;
  Progress progress;
};
struct SafetensorsUpdateReport {
  uint64_t complete_tensors = 0;  // tensors that were written as a whole
  uint64_t sparse_tensors = 0;    // tensors whose changed elements were written
  uint64_t changed_elements = 0;  // elements in these
  uint64_t removed_keys = 0;      // tensors that only the older step has
  uint64_t bytes = 0;             // bytes of the tensors in the file
  double seconds = 0;
};

/// Writes the tensors of `contents` (from List) that differ from the step `since` to the file
/// `out`. docs/import-export.md describes the file. Reads tensors that may become sparse from both
/// steps; reads a complete tensor when it is written. Memory: a load, and 32 MiB. Space next to
/// `out`, while it is written: as much again as positions and values take.
///
/// kInvalidArgument: a dtype that the format cannot express; nothing is written. kNotFound: there
/// is no step `since`. Other errors: see ExportSafetensors.
Result<SafetensorsUpdateReport> ExportSafetensorsUpdate(const CheckpointStore& store,
                                                        uint64_t since, const Contents& contents,
                                                        const std::string& out,
                                                        const SafetensorsUpdateOptions& options);

}  // namespace cairn::core
