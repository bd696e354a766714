#include "tests/cuda/runtime_kind.h"

namespace cairn::testing {

const bool kOnRealGpu = CAIRN_ON_REAL_GPU;

}  // namespace cairn::testing
