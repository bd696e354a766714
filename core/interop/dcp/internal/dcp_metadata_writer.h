#pragma once
/// Writes the `.metadata` file of torch.distributed.checkpoint.

#include <string>

#include "core/interop/dcp/internal/dcp_metadata.h"
#include "kv/error.h"

namespace cairn::core::internal {

/// Returns the pickle that torch writes for this metadata, for tensors on the CPU that require no
/// gradient. The location and the name of the save are left out. Requires a location for every
/// chunk and value. kInvalidArgument: ReadDcpMetadata does not return the same metadata, because a
/// key is not UTF-8 or an extent exceeds 63 bits. Memory: a few times that of the pickle.
Result<std::string> WriteDcpMetadata(const DcpMetadata& metadata);

}  // namespace cairn::core::internal
