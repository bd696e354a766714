#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Leaves that are not tensors, and their records.

#include <complex>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kv/base/error.h"

namespace cairn::core {

struct BigInt {
  std::vector<std::byte> twos_complement;  // little-endian, in the shortest form
  friend bool operator==(const BigInt&, const BigInt&) = default;
};
struct Bytes {
  std::vector<std::byte> data;
  friend bool operator==(const Bytes&, const Bytes&) = default;
};
/// Bytes of a Python pickle. A type other than Bytes, so that nobody unpickles bytes by accident.
struct Pickle {
  std::vector<std::byte> data;
  friend bool operator==(const Pickle&, const Pickle&) = default;
};
/// A value that is not a tensor. Doubles keep all bits, including the payload of a NaN. Strings are
/// UTF-8, in which lone surrogates are encoded as three bytes (Python's "surrogatepass").
using Value = std::variant<std::monostate, bool, int64_t, BigInt, double, std::complex<double>,
                           std::string, Bytes, Pickle>;

/// Largest string, bytes or pickle that may be a value; larger data belongs in a tensor.
inline constexpr uint64_t kMaxValueBytes = 16 << 20;

/// Returns a ValueRecord. kInvalidArgument: the value is larger than kMaxValueBytes, or a BigInt is
/// not in its shortest form.
Result<std::vector<std::byte>> EncodeValue(const Value& value);
/// Decodes a ValueRecord. kDataLoss: `record` is not a ValueRecord. kUnimplemented: a newer version
/// wrote it.
Result<Value> DecodeValue(std::span<const std::byte> record);
/// Formats a value for people: null, True, 17, 0x1f..., 'text', b'...', <pickle, 210 bytes>. Long
/// values are truncated.
std::string FormatValue(const Value& value);

}  // namespace cairn::core
