#pragma once
/// The document of a report, which the page shows (docs/report.md).

#include "core/inspect/report.h"
#include "tools/common/json.h"

namespace cairn::tools {

/// Steps are merged until the timeline has at most so many columns.
inline constexpr size_t kMaxTimelineColumns = 2000;

/// Returns the document. All names in it are escaped and short (ShortName).
Json ReportJson(const core::Report& report);

}  // namespace cairn::tools
