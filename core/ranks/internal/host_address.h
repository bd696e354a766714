#pragma once
/// Addresses of this host, in numeric form. The resolver of the system has its own time limit.

#include <string>

#include "kv/base/error.h"

namespace cairn::core::internal {

/// Returns the address of this host on the route to `host`. Sends nothing. kUnavailable: there is
/// no route.
Result<std::string> LocalAddressTowards(const std::string& host);
/// Returns the first address that `host` resolves to and that belongs to this host. kUnavailable:
/// there is none.
Result<std::string> AddressOfThisHost(const std::string& host);

}  // namespace cairn::core::internal
