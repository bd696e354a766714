#pragma once
/// Stores of many chunks or steps, which take long to create and are kept for later runs.

#include <cstdint>
#include <string>

#include "core/checkpoint_store.h"
#include "kv/base/error.h"
#include "tools/bench/verbs.h"

namespace cairn::tools {

struct KeptStore {
  std::string name;          // folder below --dir
  uint64_t small_steps = 0;  // steps with one chunk each, before the large one
  uint64_t chunks = 1;       // tensors of the large step, of 100 chunks of 64 bytes each

  uint64_t large_step() const { return small_steps + 1; }
};

/// Returns the directory of the store, and creates it if no earlier run has. kFailedPrecondition:
/// there is something else.
Result<std::string> FindOrMakeStore(const BenchOptions& options, const KeptStore& wanted);

/// The first key of the large step.
std::string FirstKey();

}  // namespace cairn::tools
