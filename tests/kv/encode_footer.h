#pragma once
/// The footer of a segment, in one piece.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/table/internal/record_run.h"

namespace cairn::kv::internal {

inline std::vector<std::byte> EncodeFooter(const SegmentHeader& header, const std::string& attempt,
                                           std::span<const FooterEntry> entries) {
  RecordList records;
  for (const FooterEntry& entry : entries) records.Add(entry.column, entry.key, entry.value);
  std::vector<std::byte> footer;
  const auto done = EncodeSegmentFooter(header, attempt, records,
                                        [&](std::span<const std::byte> piece) -> Result<void> {
                                          footer.insert(footer.end(), piece.begin(), piece.end());
                                          return {};
                                        });
  CAIRN_CHECK(done.has_value());
  return footer;
}

}  // namespace cairn::kv::internal
