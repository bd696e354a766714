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

namespace cairn::schema {
enum class ValueKind : uint8_t;
}  // namespace cairn::schema

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
/// A long value of a step of which only the record was read. The bytes are chunks of the hidden
/// tensor of the same FQN; CheckpointStore::LoadValues reads them. It cannot be saved.
struct ChunkedValue {
  schema::ValueKind kind;
  uint64_t length_bytes = 0;
  friend bool operator==(const ChunkedValue&, const ChunkedValue&) = default;
};
/// A value that is not a tensor. Doubles keep all bits, including the payload of a NaN. Strings are
/// UTF-8, in which lone surrogates are encoded as three bytes (Python's "surrogatepass").
using Value = std::variant<std::monostate, bool, int64_t, BigInt, double, std::complex<double>,
                           std::string, Bytes, Pickle, ChunkedValue>;

/// Largest string, bytes, pickle or integer that may be a value.
inline constexpr uint64_t kMaxValueBytes = 1 << 30;
/// A save stores the bytes of longer values as chunks, which steps share.
inline constexpr uint64_t kMaxInlineValueBytes = 4096;

/// Returns whether a save stores the bytes of the value as chunks.
bool IsLong(const Value& value);
/// Returns the bytes of a string, bytes, pickle or large integer; empty for other values.
std::span<const std::byte> BytesOf(const Value& value);
/// Returns the value without its bytes. Requires one that has bytes. kInvalidArgument: see
/// EncodeValue.
Result<ChunkedValue> WithoutBytes(const Value& value);
/// Returns the complete value. kDataLoss: its kind has no such bytes.
Result<Value> WithBytes(const ChunkedValue& value, std::vector<std::byte> bytes);

/// Returns a ValueRecord, which contains all bytes of a value that is not a ChunkedValue.
/// kInvalidArgument: the value is larger than kMaxValueBytes, or a BigInt is not in its shortest
/// form.
Result<std::vector<std::byte>> EncodeValue(const Value& value);
/// Decodes a ValueRecord. kDataLoss: `record` is not a ValueRecord. kUnimplemented: a newer version
/// wrote it.
Result<Value> DecodeValue(std::span<const std::byte> record);
/// "None", "bool", "int", "float", "complex", "str", "bytes" or "pickle".
const char* TypeName(const Value& value);
/// Formats a value for people: null, True, 17, 0x1f..., 'text', b'...', <pickle, 210 bytes>,
/// <bytes, 8388608 bytes>. Long values are truncated.
std::string FormatValue(const Value& value);

}  // namespace cairn::core
