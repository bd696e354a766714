#pragma once
/// The page that shows a report. CMake joins it from tools/dump/page/.

#include <string>
#include <string_view>

namespace cairn::tools {

/// The parts of the page before and after the document.
extern const std::string_view kPageBeforeData;
extern const std::string_view kPageAfterData;

/// Returns the document as text that can be inside of a script element: no character in it can end
/// the element, and it is still JSON.
std::string DataInScript(std::string_view json);

}  // namespace cairn::tools
