#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The index of a checkpoint in several files, such as "model.safetensors.index.json".

#include <map>
#include <string>

#include "kv/base/error.h"

namespace cairn::core {

/// Reads {"weight_map": {TENSOR: FILE, ...}} as hostile input, and returns the file of each tensor.
/// A file is a plain name: an index must not select files in other directories. kDataLoss: it is
/// not such an index. kNotFound, kUnavailable: it cannot be read.
Result<std::map<std::string, std::string>> ReadShardIndex(const std::string& path);

}  // namespace cairn::core
