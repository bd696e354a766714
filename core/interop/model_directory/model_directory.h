#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Reads a directory of a model as Hugging Face libraries write it: safetensors files, their
/// indexes, and the other files, in the directory and in its folders.

#include <cstddef>
#include <string>
#include <vector>

#include "core/interop/model_directory/model_layout.h"
#include "core/interop/safetensors/safetensors_file.h"
#include "core/state_dict/state_dict.h"
#include "kv/base/error.h"

namespace cairn::core {

/// The contents of a model directory. Ownership: shares the mappings of the safetensors files with
/// its copies, and owns the other files.
struct ModelDirectory {
  struct Weights {
    ModelWeights description;
    std::string folder;  // with "/"; empty: the directory itself
    std::vector<SafetensorsFile> files;
  };
  struct File {
    std::string name;
    std::vector<std::byte> bytes;
  };
  std::string prefix;  // prefix of all weights
  std::vector<Weights> weights;
  std::vector<File> files;            // in the order of their names
  std::vector<std::string> left_out;  // names of files, each with the reason
};

/// Reads the directory as hostile input. Tensors stay in the mapped files; `prefix` is the key
/// below which they will be. Hidden files, weights in other formats, and other weights next to
/// "model", "diffusion_pytorch_model" or "adapter_model" are left out; hidden files are not listed.
///
/// kInvalidArgument: a folder has several weights and none of these, there are no weights at all, a
/// file has a name that IsModelFileName does not accept, or is too long, or there are too many.
/// kDataLoss: a safetensors file or an index is damaged, or a shard lacks a tensor. kNotFound,
/// kUnavailable: a file cannot be read.
Result<ModelDirectory> ReadModelDirectory(const std::string& path, const std::string& prefix = {});

/// Returns the state to save. `directory` must outlive its use. kInvalidArgument: the name of a
/// tensor cannot be distinguished from a reserved key or from a tensor of a folder.
Result<StateDict> ModelDirectoryState(const ModelDirectory& directory);

}  // namespace cairn::core
