// kv-bench gpu in builds without the CUDA layer.

#include "tools/bench/verbs.h"

namespace cairn::tools::internal {

Result<void> BenchGpu(const BenchOptions&, BenchReport&) {
  return Fail(ErrorCode::kUnimplemented,
              "no GPU can be measured here: this build has no CUDA layer; build where a CUDA 13 "
              "toolkit is");
}

}  // namespace cairn::tools::internal
