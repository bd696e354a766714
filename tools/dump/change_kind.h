#pragma once
/// How a key differs, in words.

#include <string_view>

#include "core/inspect/compare.h"
#include "tools/common/table.h"

namespace cairn::tools {

/// Returns "added", "removed" or "changed".
std::string_view KindName(core::KeyChange::Kind kind);
/// Returns the same in the color of the kind.
Cell KindCell(core::KeyChange::Kind kind);

}  // namespace cairn::tools
