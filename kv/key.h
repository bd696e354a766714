#pragma once
/// Order-preserving keys of the index.
///
/// Integers are big-endian. An FQN is ended by NUL, so that "a" sorts before "a.b" and a prefix
/// scan of one FQN never meets another. Columns keyed by step hold the step's generation instead.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"

namespace cairn::kv {

/// Column families. The numbers stand in manifests and footers and are frozen.
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

/// 8-byte key of a number: step, segment id, or the generation prefix.
std::string NumberKey(uint64_t value);

/// FQN and NUL. Requires an FQN without NUL (checked where state dicts are flattened).
std::string FqnKey(std::string_view fqn);
/// FQN, NUL, offsets.
std::string ChunkKey(std::string_view fqn, std::span<const uint64_t> offsets_elements);

/// What FqnKey and ChunkKey made. kDataLoss: no NUL, or the rest is no multiple of 8 bytes.
struct ParsedKey {
  std::string_view fqn;  // borrows the key
  std::vector<uint64_t> offsets_elements;
};
Result<ParsedKey> ParseKey(std::string_view key);

}  // namespace cairn::kv
