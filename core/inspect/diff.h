#pragma once
/// The differences between two steps.

#include <cstdint>
#include <string>
#include <vector>

namespace cairn::core {

struct KeyChange {
  enum class Kind { kAdded, kRemoved, kChanged } kind;
  std::string fqn;
  bool is_tensor = true;
  uint64_t changed_bytes = 0;  // of chunks or pages that differ; all bytes if added or removed
  uint64_t total_bytes = 0;
  std::string detail;  // "dtype float32 -> bfloat16", "shape ...", or old -> new value
};

struct Diff {
  std::vector<KeyChange> changes;  // key order
  uint64_t unchanged_keys = 0;
};

}  // namespace cairn::core
