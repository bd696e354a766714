#pragma once
/// The storage at an address.

#include <memory>
#include <string>

#include "kv/storage.h"

namespace cairn::kv {

/// Opens the storage at an address: PATH, file:PATH, or memory:NAME (which is shared inside the
/// process). Creates nothing. A relative path whose first element contains ':' needs "file:" or
/// "./" before it. kInvalidArgument: the address is of another kind, or has no path or name.
Result<std::shared_ptr<Storage>> OpenStorage(const std::string& address);

}  // namespace cairn::kv
