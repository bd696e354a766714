// The hook of the fault points.

#include "kv/io/internal/fault_point.h"

namespace cairn::kv::internal {

std::atomic<FaultHook> fault_hook{nullptr};

}  // namespace cairn::kv::internal
