#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Reads safetensors files as hostile input.

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/interop/safetensors/safetensors_format.h"
#include "core/state_dict/state_dict.h"
#include "kv/base/error.h"
#include "kv/base/mapping.h"

namespace cairn::core {

/// A file that is mapped into memory. Ownership: shares the mapping, which the `bytes` of all
/// tensors point into, with its copies. Threads: immutable. The file must not be truncated while it
/// is in use.
class SafetensorsFile {
 public:
  /// Opens a file and checks its complete header: no tensor may extend beyond the file, tensors may
  /// not overlap, and there may be no bytes between them. kDataLoss: it is not a safetensors file,
  /// or a damaged one. kInvalidArgument: it is a known other thing (DescribeWrongFile).
  /// kUnimplemented: this version does not know a dtype. kNotFound, kUnavailable: it cannot be
  /// opened.
  static Result<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  /// In the order of their bytes.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;
  Result<void> ReadHeader();
  std::string path_;
  std::shared_ptr<const kv::Mapping> mapping_;
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Returns the tensors of all files as one flat state dict with their names as keys, below the key
/// `prefix` unless it is empty. The files must outlive its use. A save refuses the state if two
/// tensors have the same name.
StateDict SafetensorsState(std::span<const SafetensorsFile> files, std::string_view prefix = {});

}  // namespace cairn::core
