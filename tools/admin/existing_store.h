#pragma once
/// Opens stores that must exist.

#include <memory>
#include <string>

#include "kv/base/error.h"
#include "kv/base/options.h"

namespace cairn::kv {
class Store;
}

namespace cairn::tools {

/// Opens a store for writing. kNotFound: there is none; a mistyped address must not create an empty
/// store, as kv::Store::Open would.
Result<std::unique_ptr<kv::Store>> OpenExisting(const std::string& store,
                                                const kv::StoreOptions& options = {});

}  // namespace cairn::tools
