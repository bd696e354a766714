#pragma once
/// `kv-dump serve`: the live view of a store.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/error.h"
#include "tools/dump/run.h"

namespace cairn::tools {

struct ServeRequest {
  std::string store;
  std::string address = "127.0.0.1";
  std::optional<uint64_t> port;
  std::vector<std::string> hosts;
  bool all_steps = false;
};

/// Answers requests until the user ends it with SIGINT or SIGTERM. Returns the exit status.
Result<int> DumpServe(const DumpRun& run, const ServeRequest& request);

}  // namespace cairn::tools
