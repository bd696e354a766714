// kv-bench gpu in builds without the CUDA layer, in place of gpu.cc.

#include "tools/bench/verbs.h"

namespace cairn::tools {

Result<void> BenchGpu(const BenchOptions&, BenchReport&) {
  return Fail(
      ErrorCode::kUnimplemented,
      "no GPU can be measured here: this build has no CUDA layer; build on a machine with a "
      "CUDA 13 toolkit");
}

}  // namespace cairn::tools
