#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Order-preserving keys of the records in tables.
///
/// A key in a table is the number of the column, followed by the key within the column. Integers
/// are big-endian. An FQN ends with NUL, so that "a" sorts before "a.b" and a prefix scan of one
/// FQN never returns another.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"

namespace cairn::kv {

/// The kinds of records. The numbers are stored in tables, parts and footers and are frozen.
/// Columns that this build does not know are between kStructures and kSegments: what is after them
/// depends on all other records of a table.
/// Numbers from 64 to 127 belong to applications.
enum class Column : uint8_t {
  kSteps = 0,         // (empty)       -> StepSummary
  kTensors = 1,       // FQN           -> TensorRecord
  kChunks = 2,        // FQN, offsets  -> ChunkRecord
  kValues = 3,        // FQN           -> ValueRecord
  kStructures = 4,    // (empty)       -> StructureRecord
  kApplication = 64,  // name          -> ApplicationRecord
  kSegments = 253,    // segment id    -> SegmentRecord
  kUsage = 254,       // segment id    -> live bytes (u64), epoch and id_tail (u32 each)
  kTables = 255,      // (empty)       -> the tables of the step after this one
};
inline constexpr int kColumnCount = 256;
/// Returns the first byte of the keys of a column in tables.
inline std::string ColumnPrefix(Column column) { return {static_cast<char>(column)}; }
/// Returns the key of a record in tables.
std::string TableKey(Column column, std::string_view key);

void AppendBigEndian(std::string& out, uint64_t value);
/// Requires 8 bytes at `bytes`.
uint64_t ReadBigEndian(const char* bytes);

/// Returns the 8-byte key of a number, such as a segment id.
std::string NumberKey(uint64_t value);

/// Returns the FQN, NUL and the offsets. Requires an FQN without NUL (checked where state dicts are
/// flattened).
std::string ChunkKey(std::string_view fqn, std::span<const uint64_t> offsets_elements);
/// Returns the FQN and NUL. Requires an FQN without NUL.
inline std::string FqnKey(std::string_view fqn) { return ChunkKey(fqn, {}); }

/// The parts of a key from FqnKey or ChunkKey. kDataLoss: there is no NUL, or the bytes after it
/// are not a multiple of 8.
struct ParsedKey {
  std::string_view fqn;  // borrows the key
  std::vector<uint64_t> offsets_elements;
};
Result<ParsedKey> ParseKey(std::string_view key);

}  // namespace cairn::kv
