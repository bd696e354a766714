#pragma once
/// The page that shows a report. CMake joins it from tools/dump/page/.

#include <string>
#include <string_view>

namespace cairn::tools {

/// The parts of the page before and after the document. The policy of the page forbids connections.
extern const std::string_view kPageBeforeData;
extern const std::string_view kPageAfterData;

/// Returns the page with a document (ReportJson).
std::string ReportPage(std::string_view json);
/// Returns the page with a document that has a member "live". It may connect to its server.
std::string LivePage(std::string_view json);

/// Returns the document as text that can be inside of a script element: no character in it can end
/// the element, and it is still JSON.
std::string DataInScript(std::string_view json);

}  // namespace cairn::tools
