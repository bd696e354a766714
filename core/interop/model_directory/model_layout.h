#pragma once
// SPDX-License-Identifier: Apache-2.0
/// How a step contains a model directory: its weights as tensors, and all else as files under a
/// reserved key. docs/import-export.md describes it for users.
///
///   "__files__"    a map from the name of each file, relative to the directory and with "/", to
///                  its bytes: a value of type bytes, or if it is long a tensor of uint8
///   "__weights__"  a string: JSON that names the weights, which have the other keys
///                    {STEM: {"prefix": PREFIX, "metadata": {NAME: TEXT, ...}}, ...}
///                  STEM is the path of the weights without ".safetensors", such as "model" or
///                  "unet/diffusion_pytorch_model". The FQN of a tensor is PREFIX, ".", and its
///                  name in the file; if PREFIX is empty, its name.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"

namespace cairn::core {

inline constexpr std::string_view kModelFilesKey = "__files__";
inline constexpr std::string_view kModelWeightsKey = "__weights__";

inline constexpr uint64_t kMaxModelFiles = 10'000;
inline constexpr uint64_t kMaxModelFileBytes = 256 << 20;
inline constexpr uint64_t kMaxAllModelFileBytes = 1 << 30;
/// Longer files are tensors, so that steps share them chunk by chunk.
inline constexpr uint64_t kMaxModelFileValueBytes = 1 << 20;

/// The weights of a model, or of one part of a pipeline: one safetensors file, or several and an
/// index.
struct ModelWeights {
  std::string stem;
  std::string prefix;
  std::map<std::string, std::string> metadata;  // metadata of the safetensors files

  /// Returns the FQN of a tensor without its name in the file: the prefix and ".".
  std::string fqn_prefix() const { return prefix.empty() ? "" : prefix + "."; }
};

/// Returns whether `name` is a relative path of plain names: no "..", no hidden file, nothing that
/// could be outside of a directory in which it is created.
bool IsModelFileName(std::string_view name);

/// Returns whether `fqn` is `key` or below it.
bool IsBelowKey(std::string_view fqn, std::string_view key);

/// Returns the weights that `fqn` belongs to: the weights with the longest prefix that it has. Null
/// if there are none, or if `fqn` is a reserved key.
const ModelWeights* FindModelWeights(std::span<const ModelWeights> weights, std::string_view fqn);

/// Encodes the value of "__weights__". kInvalidArgument: a name is not UTF-8.
Result<std::string> EncodeModelWeights(std::span<const ModelWeights> weights);
/// Decodes it as hostile input. kDataLoss: it is not such a value, a stem is not a name that
/// IsModelFileName accepts, or two prefixes are equal.
Result<std::vector<ModelWeights>> DecodeModelWeights(std::string_view json);

}  // namespace cairn::core
