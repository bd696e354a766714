#pragma once
/// The raw device's speed, measured by fio on the same directory and in the same run.

#include <cstdint>
#include <string>

#include "kv/error.h"

namespace cairn::tools::internal {

struct FioResult {
  double seconds = 0;  // as fio reports the job, its final fsync included for writes
  uint64_t bytes = 0;
  std::string engine;  // io_uring, or libaio where the kernel has none
};

/// The file that fio works on below `directory`; the caller removes it.
inline constexpr const char* kFioFileName = "cairn-bench-fio.dat";

/// Sequential O_DIRECT write of a fresh file: blocks of 4 MiB, 8 in flight, fsync at the end.
/// kUnavailable: fio is not installed or failed; the message has its last line.
Result<FioResult> FioWrite(const std::string& directory, uint64_t bytes);
/// Sequential O_DIRECT read of the file that FioWrite left.
Result<FioResult> FioRead(const std::string& directory, uint64_t bytes);

}  // namespace cairn::tools::internal
