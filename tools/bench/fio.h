#pragma once
/// The speed of the raw device, measured by fio in the same directory and in the same run.

#include <cstdint>
#include <string>

#include "kv/base/error.h"
#include "tools/bench/report.h"

namespace cairn::tools {

struct FioResult {
  double seconds = 0;  // duration of the job from fio; for writes with the final fsync
  uint64_t bytes = 0;
  std::string engine;  // io_uring, or libaio if the kernel does not support that
};

/// Sequential O_DIRECT write of a new file: blocks of 4 MiB, 8 in flight, fsync at the end.
/// kNotFound: fio is not installed. kUnavailable: fio failed; the message has the start of its
/// output.
Result<FioResult> FioWrite(const std::string& directory, uint64_t bytes);
/// Sequential O_DIRECT read of the file that FioWrite left. Returns the same errors as FioWrite.
Result<FioResult> FioRead(const std::string& directory, uint64_t bytes);

/// Removes fio's file at the end of its scope.
struct FioFile {
  std::string directory;
  ~FioFile();
};

/// A row of the report, next to the rows of a store.
BenchRow FioRow(const std::string& verb, const std::string& what, uint64_t run,
                const FioResult& fio);

}  // namespace cairn::tools
