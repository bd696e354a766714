#pragma once
/// Exit statuses of all programs.

#include "kv/base/error.h"

namespace cairn::tools {

enum ExitStatus : int {
  kExitSuccess = 0,
  kExitDiffers = 1,  // the named objects differ or are damaged
  kExitFailed = 2,   // the command could not be carried out
};

/// Returns kExitSuccess or the error, for a verb that has one kind of success.
inline Result<int> StatusOf(const Result<void>& done) {
  CAIRN_TRY(done);
  return kExitSuccess;
}

}  // namespace cairn::tools
