#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Vocabulary of the safetensors file format (https://github.com/huggingface/safetensors).

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/tensor/tensor.h"
#include "kv/base/error.h"

namespace cairn::core {

/// Reads {"weight_map": {TENSOR: FILE, ...}} as hostile input, and returns the file of each tensor.
/// A file is a plain name: an index must not select files in other directories. kDataLoss: it is
/// not such an index. kNotFound, kUnavailable: it cannot be read.
Result<std::map<std::string, std::string>> ReadShardIndex(const std::string& path);

/// Returns what a file is that begins with `head` and was fetched instead of a checkpoint, as a
/// sentence with what to do; "" if it is nothing known.
std::string DescribeWrongFile(std::string_view head);
inline constexpr uint64_t kWrongFileHeadBytes = 256;  // enough for DescribeWrongFile

/// The format's own limit.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// Returns the format's name of a dtype, such as "F32", or nothing if it has none.
std::optional<std::string_view> SafetensorsName(DType dtype);
/// kInvalidArgument, naming the key: the format has no name for the dtype of a tensor.
Result<void> CheckSafetensorsDType(const std::string& fqn, DType dtype);
/// Returns the dtype of a name, or nothing if this version does not know the name.
std::optional<DType> FindSafetensorsDType(std::string_view name);

/// The entry of a file for a tensor. The shape counts elements as torch does: the format counts the
/// 4-bit elements of an "F4" tensor, of which float4_e2m1fn_x2 packs two along the last dimension.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kUnknown;
  Shape shape;
};

/// A tensor of a file that is in memory.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kUnknown;
  Shape shape;
  std::span<const std::byte> bytes;  // row-major, in the mapping of the file; any alignment
};

}  // namespace cairn::core
