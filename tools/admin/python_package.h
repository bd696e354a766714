#pragma once
/// What `kv-admin import` and `export` leave to the Python package (cairn._interop): files of
/// torch.save, directories of torch.distributed.checkpoint (DCP), and conversions of tensors.

#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "tools/common/command_line.h"

namespace cairn::tools {

/// Returns whether the file begins as one of torch.save, of any version.
bool LooksLikeTorchFile(const std::string& path);
/// Returns whether it is a directory that contains `.metadata` or `__0.metadata`, or such a file.
bool LooksLikeDcpCheckpoint(const std::string& path);

/// How tensors are converted.
struct Conversion {
  std::vector<std::string> rename;  // "EXPRESSION=TEXT", applied after the rules of the file
  std::string rules_file;           // JSON
  std::string dtype;                // dtype of all floating-point tensors; empty: their own

  bool empty() const { return rename.empty() && rules_file.empty() && dtype.empty(); }
  /// The arguments --rename, --rules and --dtype, which set the members.
  std::vector<Argument> Arguments();
  /// Appends the same arguments, as the user wrote them.
  void AppendTo(std::vector<std::string>& words) const;
};

/// Replaces this program by Python, which carries out `words`: a verb of cairn._interop.main and
/// its options. The interpreter is $CAIRN_PYTHON if it is set, otherwise the python3 next to this
/// program, or on the PATH. Returns only if none can be started (kUnavailable).
Result<void> BecomePython(const std::vector<std::string>& words);

/// Returns `path`, in a form that is not an option.
std::string AsWord(std::string_view path);

}  // namespace cairn::tools
