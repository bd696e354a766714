#pragma once
/// Order-preserving keys of the index.
///
/// Integers are big-endian. An FQN ends with NUL, so that "a" sorts before "a.b" and a prefix scan
/// of one FQN never returns another. Records of a step's contents are under its generation, not
/// under its number, so that a step can be replaced atomically.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"

namespace cairn::kv {

/// Column families. The numbers are stored in manifests and footers and are frozen.
enum class Column : uint8_t {
  kSteps = 0,       // step                        -> StepRecord
  kTensors = 1,     // generation, FQN             -> TensorRecord
  kChunks = 2,      // generation, FQN, offsets    -> ChunkRecord
  kValues = 3,      // generation, FQN             -> ValueRecord
  kStructures = 4,  // digest                      -> StructureRecord
  kSegments = 5,    // segment id                  -> SegmentRecord
  kUsage = 6,       // segment id, generation      -> live bytes (u64, little-endian)
};
inline constexpr int kColumnCount = 7;
const char* ColumnName(Column column);

void AppendBigEndian(std::string& out, uint64_t value);
/// Requires 8 bytes at `bytes`.
uint64_t ReadBigEndian(const char* bytes);

/// Returns the 8-byte key of a number: a step, a segment id, or the prefix of a generation.
std::string NumberKey(uint64_t value);

/// Returns the FQN and NUL. Requires an FQN without NUL (checked where state dicts are flattened).
std::string FqnKey(std::string_view fqn);
/// Returns the FQN, NUL and the offsets. Requires an FQN without NUL.
std::string ChunkKey(std::string_view fqn, std::span<const uint64_t> offsets_elements);

/// The parts of a key from FqnKey or ChunkKey. kDataLoss: there is no NUL, or the bytes after it
/// are not a multiple of 8.
struct ParsedKey {
  std::string_view fqn;  // borrows the key
  std::vector<uint64_t> offsets_elements;
};
Result<ParsedKey> ParseKey(std::string_view key);

}  // namespace cairn::kv
