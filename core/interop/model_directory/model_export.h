#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Exports steps as directories of models, which Hugging Face libraries open.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/step/contents.h"
#include "core/upkeep/payload_reader.h"
#include "kv/base/error.h"

namespace cairn::core {

class CheckpointStore;

struct ModelExportOptions {
  uint64_t max_shard_bytes = 5'000'000'000;  // larger weights become several files and an index
  bool overwrite = false;  // replaces the directory, with all its files, if it has a model
  Progress progress;
  RequestLoader load = {};  // loads the tensors; empty: CheckpointStore::Load
};
struct ModelExportReport {
  std::vector<std::string> files;  // paths of the files that were written
  uint64_t tensors = 0;
  uint64_t bytes = 0;             // bytes of tensors
  uint64_t tensors_left_out = 0;  // tensors that belong to no weights, such as an optimizer's
  uint64_t values_left_out = 0;
  double seconds = 0;
};

/// Writes the model in `contents` (from List, complete) as the directory `out`, which appears
/// complete or not at all. The files equal the files that were kept with the step, byte for byte;
/// the weights are safetensors files with their original names, dtypes, shapes and metadata.
///
/// kInvalidArgument: the step has no model (model_layout.h), or a dtype that safetensors files
/// cannot hold; nothing is written. kConflict: the directory is not empty, or cannot be replaced.
/// kDataLoss: the step has a file with a name outside of the directory, or something else that is
/// not a file. Other errors: see ExportSafetensors.
Result<ModelExportReport> ExportModelDirectory(const CheckpointStore& store,
                                               const Contents& contents, const std::string& out,
                                               const ModelExportOptions& options = {});

}  // namespace cairn::core
