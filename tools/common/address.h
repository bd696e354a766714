#pragma once
/// Addresses on the command line: STORE and STORE@STEP.

#include <cstdint>
#include <optional>
#include <string>

#include "kv/error.h"

namespace cairn::tools::internal {

struct Address {
  std::string store;             // what CheckpointStore::Open takes
  std::optional<uint64_t> step;  // none: the latest
};

/// Splits at the last "@" if a number follows; a directory whose own name ends that way is taken
/// whole if only it exists. kInvalidArgument: an empty store, or a step beyond 2^64.
Result<Address> ParseAddress(const std::string& text);

/// The directory of a store address: without "file:".
std::string AddressDirectory(const std::string& store);

}  // namespace cairn::tools::internal
