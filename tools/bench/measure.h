#pragma once
/// Time, processor time, memory and device traffic of one piece of work in this process.

#include <chrono>
#include <cstdint>
#include <optional>

namespace cairn::tools::internal {

struct Measurement {
  double seconds = 0;
  double cpu_seconds = 0;  // user and system, all threads
  /// Largest resident set while it ran. Since the start of the process where the kernel does not
  /// let the mark be reset (peak_is_of_run is false then).
  uint64_t peak_resident_bytes = 0;
  /// The part of it above what was resident when the work began: with tensors already in memory,
  /// what the work itself needed.
  uint64_t peak_beyond_tensors_bytes = 0;
  bool peak_is_of_run = false;
  /// What the kernel fetched from and sent to devices for this process; nothing where it does not
  /// say.
  std::optional<uint64_t> device_read_bytes;
  std::optional<uint64_t> device_written_bytes;
};

/// Measures from its construction to Stop. Counts the whole process: one meter at a time.
class Meter {
 public:
  Meter();
  Measurement Stop() const;

 private:
  std::chrono::steady_clock::time_point begin_;
  double cpu_seconds_ = 0;
  uint64_t resident_bytes_ = 0;
  bool peak_reset_ = false;
  std::optional<uint64_t> device_read_bytes_;
  std::optional<uint64_t> device_written_bytes_;
};

}  // namespace cairn::tools::internal
