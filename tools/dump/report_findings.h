#pragma once
/// The most important facts of a report, as sentences.

#include <cstddef>
#include <string>
#include <string_view>

#include "core/inspect/report.h"
#include "tools/common/json.h"

namespace cairn::tools {

/// Returns a name that is safe to show: escaped, and without its middle if it is long.
std::string ShortName(std::string_view name);

/// Returns the path of a module, such as "model.layers.0", which is safe to show.
std::string ModulePath(const core::Report& report, size_t module);

/// Returns the list of findings, the most urgent first: objects with the members topic ("nan",
/// "inf", "growth", "unchanged", "health" or "space"), level ("bad", "warning", "good" or "info"),
/// title (a sentence), text (further sentences; may be empty), details (items of a list; may be
/// empty), and module and step if they are to be shown.
Json FindingsJson(const core::Report& report);

}  // namespace cairn::tools
