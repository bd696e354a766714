#pragma once
/// `kv-admin compression`: whether saves to a store compress.

#include <string>

#include "kv/error.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct CompressionCommand {
  std::string store;
  bool on = false;
  bool off = false;
  bool json = false;
};
/// Shows the setting of a store, or changes it.
Result<void> AdminCompression(const CompressionCommand& command, Output& out);
Verb CompressionVerb(CompressionCommand& command);

}  // namespace cairn::tools
