#include "kv/internal/table/table_info.h"

#include "kv/key.h"

namespace cairn::kv::internal {

bool AreTableRanges(std::span<const TableRange> ranges) {
  const std::string prefix = ColumnPrefix(Column::kChunks);
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!ranges[i].begin.starts_with(prefix)) return false;
    if (i > 0 && ranges[i].begin <= ranges[i - 1].begin) return false;
  }
  return true;
}

}  // namespace cairn::kv::internal
