#pragma once
/// Opens one store on all ranks of a job.

#include <functional>
#include <memory>
#include <string>

#include "core/ranks/communicator.h"
#include "kv/options.h"
#include "kv/store.h"

namespace cairn::core::internal {

/// Implements CheckpointStore::OpenShared. `directory` returns the directory of the store, or an
/// error that all ranks report; it is called once.
Result<std::unique_ptr<kv::Store>> OpenTogether(
    const std::function<Result<std::string>()>& directory, kv::OpenMode mode,
    Communicator& communicator, kv::StoreOptions options);

}  // namespace cairn::core::internal
