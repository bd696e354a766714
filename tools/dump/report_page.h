#pragma once
/// The document of a report (docs/report.md), and the page that shows it. CMake joins the page from
/// tools/dump/page/.

#include <string>
#include <string_view>

#include "core/inspect/report.h"
#include "tools/common/json.h"

namespace cairn::tools {

/// Returns the document. All names in it, except for keys, are escaped and short (ShortName).
/// `with_keys` adds a member "key" to a tensor whose name is shown with escapes, for requests to
/// the live view. The key is not escaped; null: the name has more than 1 KiB.
Json ReportJson(const core::Report& report, bool with_keys = false);

// The parts of the page before and after the document.
extern const std::string_view kPageBeforeData;
extern const std::string_view kPageAfterData;

/// Returns the page with the text of a document. The policy of the page forbids connections.
std::string ReportPage(std::string_view json);
/// Returns the page with a document that has a member "live". It may connect to its server.
std::string LivePage(std::string_view json);

}  // namespace cairn::tools
