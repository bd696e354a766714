#pragma once
/// Where and how a verb of kv-dump prints.

#include <string_view>

#include "tools/common/terminal.h"

namespace cairn::tools {

struct DumpRun {
  Output* out = nullptr;
  bool json = false;  // one JSON document instead of text
};

/// Prints a remark for people ("No steps yet."), which a JSON document does not have.
inline void PrintRemark(const DumpRun& run, std::string_view text) {
  if (!run.json) run.out->WriteLine(run.out->Styled(Style::kDim, text));
}

}  // namespace cairn::tools
