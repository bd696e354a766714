#pragma once
/// `kv-dump verify`: reads every byte and checks every digest and record.

#include <string>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

/// Checks a store, or the step that the address names. `max_rate` is what the user wrote ("50M";
/// per second), or empty: no limit. Returns the exit status, which is kExitDiffers if there is
/// damage.
Result<int> DumpVerify(const DumpRun& run, const std::string& address, const std::string& max_rate);

}  // namespace cairn::tools
