#pragma once
/// Opens one store on all ranks of a job.

#include <memory>
#include <string>

#include "core/ranks/communicator.h"
#include "kv/base/options.h"
#include "kv/store.h"

namespace cairn::core::internal {

/// Implements CheckpointStore::OpenShared.
Result<std::unique_ptr<kv::Store>> OpenTogether(const std::string& address, kv::OpenMode mode,
                                                Communicator& communicator,
                                                kv::StoreOptions options);

}  // namespace cairn::core::internal
