#pragma once
/// The description of a table in a root.

#include <cstdint>

#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {

struct TableInfo {
  ObjectId id;
  uint64_t file_bytes = 0;
  uint64_t record_count = 0;  // including tombstones
  uint64_t digest = 0;        // XXH3-64 of the complete file
  friend bool operator==(const TableInfo&, const TableInfo&) = default;
};

}  // namespace cairn::kv::internal
