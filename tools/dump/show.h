#pragma once
/// `kv-dump show`: values and statistics of one key.

#include <string>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

struct ShowOptions {
  std::string slice;  // as Python writes it (slice.h); empty: the complete tensor
  bool all = false;   // print every value, regardless of their number
};

/// Prints a tensor or a plain value. Returns the exit status.
Result<int> DumpShow(const DumpRun& run, const std::string& address, const std::string& fqn,
                     const ShowOptions& options);

}  // namespace cairn::tools
