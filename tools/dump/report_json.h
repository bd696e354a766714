#pragma once
/// The document of a report, which the page shows (docs/report.md).

#include "core/inspect/report.h"
#include "tools/common/json.h"

namespace cairn::tools {

/// Steps are merged until the timeline has at most so many columns.
inline constexpr size_t kMaxTimelineColumns = 2000;

struct ReportJsonOptions {
  /// Adds a member "key" to a tensor whose name is shown with escapes, for requests to the live
  /// view. The key is not escaped; null: the name has more than 1 KiB.
  bool with_keys = false;
};

/// Returns the document. All names in it, except for keys, are escaped and short (ShortName).
Json ReportJson(const core::Report& report, const ReportJsonOptions& options = {});

}  // namespace cairn::tools
