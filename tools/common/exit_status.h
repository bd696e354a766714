#pragma once
/// Exit statuses of all programs.

namespace cairn::tools::internal {

enum ExitStatus : int {
  kExitFine = 0,
  kExitDiffers = 1,  // what was asked about differs or is damaged
  kExitFailed = 2,   // it could not be done
};

}  // namespace cairn::tools::internal
