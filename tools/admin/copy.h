#pragma once
/// Copies of steps between stores, by the verbs push, pull, mirror and fork of kv-admin.

#include <cstdint>
#include <optional>
#include <string>

#include "kv/base/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct CopyCommand {
  std::string from;
  std::string to;
  uint64_t threads = 4;
  std::optional<uint64_t> into;  // fork: the number of the copy
  std::string max_rate;
  bool overwrite = false;
  bool json = false;
};

/// Copies the steps that `from` names and prints one line per step. kNotFound: one of them was
/// deleted during the copy. Other errors: see kv::CopySteps.
Result<void> Copy(const CopyCommand& command, Output& out);

}  // namespace cairn::tools
