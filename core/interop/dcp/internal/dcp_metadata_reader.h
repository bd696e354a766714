#pragma once
/// Reads a `.metadata` file without unpickling it.

#include <span>

#include "core/interop/dcp/internal/dcp_metadata.h"
#include "kv/error.h"

namespace cairn::core::internal {

/// Decodes the pickle of a `.metadata` file. Only classes of torch.distributed.checkpoint itself,
/// torch.Size, dtypes and paths may be named in it. kDataLoss: it is not such metadata, or damaged.
/// kUnimplemented: it names another class, or was written by a storage other than FileSystemWriter
/// or with transforms (compression). kResourceExhausted: the pickle exceeds the limits of
/// ReadPickle. Memory: a few times that of the pickle.
Result<DcpMetadata> ReadDcpMetadata(std::span<const std::byte> pickle);

}  // namespace cairn::core::internal
