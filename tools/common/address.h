#pragma once
/// Addresses on the command line: STORE and STORE@STEP.

#include <cstdint>
#include <optional>
#include <string>

#include "kv/error.h"

namespace cairn::tools {

struct Address {
  std::string store;             // the argument of CheckpointStore::Open
  std::optional<uint64_t> step;  // none: the latest step
};

/// Splits at the last "@" if a number follows, unless only a directory with that complete name
/// exists. kInvalidArgument: the store is empty, or the step exceeds 2^64 - 1.
Result<Address> ParseAddress(const std::string& text);

/// Returns the directory of a store address, without "file:".
std::string AddressDirectory(const std::string& store);

}  // namespace cairn::tools
