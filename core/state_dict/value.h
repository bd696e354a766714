#pragma once
/// Leaves that are no tensors, and their records.

#include <complex>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kv/error.h"

namespace cairn::core {

struct BigInt {
  std::vector<std::byte> twos_complement;  // little-endian, shortest form
  friend bool operator==(const BigInt&, const BigInt&) = default;
};
struct Bytes {
  std::vector<std::byte> data;
  friend bool operator==(const Bytes&, const Bytes&) = default;
};
/// Bytes of a Python pickle. Kept apart from Bytes so that nobody unpickles by accident.
struct Pickle {
  std::vector<std::byte> data;
  friend bool operator==(const Pickle&, const Pickle&) = default;
};
/// Doubles are kept bit for bit, NaN payloads included. Strings are UTF-8; lone surrogates as three
/// bytes (Python's "surrogatepass").
using Value = std::variant<std::monostate, bool, int64_t, BigInt, double, std::complex<double>,
                           std::string, Bytes, Pickle>;

/// Largest string, bytes or pickle that may be a plain value; larger data belongs into a tensor.
inline constexpr uint64_t kMaxValueBytes = 16 << 20;

/// A ValueRecord. kInvalidArgument: larger than kMaxValueBytes.
Result<std::vector<std::byte>> EncodeValue(const Value& value);
/// kDataLoss: not a ValueRecord. kUnimplemented: of a newer version.
Result<Value> DecodeValue(std::span<const std::byte> record);
/// For people: null, True, 17, 0x1f..., 'text', b'...' (long ones cut), <pickle, 210 bytes>.
std::string FormatValue(const Value& value);

}  // namespace cairn::core
