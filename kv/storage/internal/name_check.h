#pragma once
/// Checks the spelling of names, as kv/storage/storage.h defines it.

#include <string>
#include <string_view>

namespace cairn::kv::internal {

/// Returns whether `name` is a valid name: elements of letters, digits, '.', '-' and '_' with '/'
/// between them, none of which is empty or begins with '.'.
bool IsObjectName(std::string_view name);
/// Returns whether `prefix` is empty, or a valid name followed by '/'.
bool IsObjectPrefix(std::string_view prefix);

/// Returns what Error::file contains for an object: the address of the storage, '/', and the name.
std::string ObjectPath(std::string_view address, std::string_view name);

}  // namespace cairn::kv::internal
