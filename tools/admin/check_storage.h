#pragma once
/// `kv-admin check-storage`: checks whether a storage has the guarantees that Cairn needs.

#include <cstdint>
#include <string>

#include "kv/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct CheckStorageOptions {
  std::string address;
  std::string second_address;  // another mount of the same directory; empty: the same address
  uint64_t rounds = 200;       // of each check; slow ones stop after 30 s
  bool json = false;
};

/// Exercises the storage below a new name, which it removes, and prints one row per check. Returns
/// kExitSuccess, or kExitDiffers if a guarantee is missing. kUnavailable, kNotFound: nothing can be
/// written there. kInvalidArgument: the addresses are not of the same directory. kCancelled: the
/// user has asked to stop.
Result<int> AdminCheckStorage(const CheckStorageOptions& options, Output& out);

}  // namespace cairn::tools
