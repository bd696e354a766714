#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Exports steps as safetensors files.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/progress.h"
#include "core/step/contents.h"
#include "core/upkeep/payload_reader.h"
#include "kv/base/error.h"

namespace cairn::core {

class CheckpointStore;

struct SafetensorsExportOptions {
  uint64_t max_shard_bytes = 5'000'000'000;  // larger selections become several files and an index
  bool replaces = false;  // removes what an earlier export has left (RemoveReplacedFiles)
  /// FQNs that begin with this lose it in the names of the file. All tensors must begin with it.
  std::string name_prefix;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  // metadata of each file
  Progress progress;
  RequestLoader load = {};  // loads the tensors; empty: CheckpointStore::Load
};
struct SafetensorsExportReport {
  std::vector<std::string> files;  // paths of the files that were written, including the index
  uint64_t tensors = 0;
  uint64_t bytes = 0;            // each tensor counts in full, even if it shares memory
  uint64_t values_left_out = 0;  // the format holds only tensors
  double seconds = 0;
};

/// Writes the tensors of `contents` (from List) as safetensors. `out` is a file whose name ends in
/// ".safetensors", or a directory, which is created and receives "model.safetensors". If there is
/// more than one shard, the files are "model-00001-of-00003.safetensors", ..., and
/// "model.safetensors.index.json". Tensors that share memory are each written in full.
///
/// kInvalidArgument: a dtype that the format cannot express; nothing is written. kNotFound,
/// kUnavailable, kResourceExhausted: a file cannot be created or written. Errors of reading the
/// step: see CheckpointStore::Load.
Result<SafetensorsExportReport> ExportSafetensors(const CheckpointStore& store,
                                                  const Contents& contents, const std::string& out,
                                                  const SafetensorsExportOptions& options = {});

/// Returns the files that an export to `out` may have written, however many: the file itself, its
/// index, and shards. kUnavailable: their folder cannot be read.
Result<std::vector<std::string>> FindExportedFiles(const std::string& out);
/// Removes those of FindExportedFiles that are not among `written`: readers would prefer an old
/// index, or an old file without one, to the new files. kUnavailable: one cannot be removed.
Result<void> RemoveReplacedFiles(const std::string& out, const std::vector<std::string>& written);

}  // namespace cairn::core
