#pragma once
/// `kv-dump report`: writes a page that shows a store.

#include <string>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

struct ReportRequest {
  std::string store;
  std::string file;        // of the page; empty: none
  bool all_steps = false;  // examine the records of all steps, however many there are
};

/// Writes the page, or prints the document with --json. Requires an output of one kind.
Result<int> DumpReport(const DumpRun& run, const ReportRequest& request);

}  // namespace cairn::tools
