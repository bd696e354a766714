#pragma once
/// Files of torch.save and directories of torch.distributed.checkpoint (DCP). The Python package
/// reads and writes them (cairn._interop); this program recognizes them and starts Python.

#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"

namespace cairn::tools {

/// Returns whether the file begins as one of torch.save, of any version.
bool LooksLikeTorchFile(const std::string& path);
/// Returns whether it is a directory that contains `.metadata` or `__0.metadata`, or such a file.
bool LooksLikeDcpCheckpoint(const std::string& path);

/// Replaces this program by Python, which carries out `words`: a verb of cairn._interop.main and
/// its options. The interpreter is $CAIRN_PYTHON if it is set, otherwise the python3 next to this
/// program, or on the PATH. Returns only if none can be started (kUnavailable).
Result<void> BecomePython(const std::vector<std::string>& words);

/// Returns `path`, in a form that is not an option.
std::string AsWord(std::string_view path);

}  // namespace cairn::tools
