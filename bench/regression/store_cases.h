#pragma once
/// Cases that work on a store: small tensors, large tensors, opening.

#include <string>

#include "kv/error.h"

namespace cairn::bench {

Result<void> CountSmallTensors(const std::string& directory);
Result<void> CountPayload(const std::string& directory);
Result<void> CountOpen(const std::string& directory);

}  // namespace cairn::bench
