#pragma once
/// Time, processor time, memory and device traffic of one operation in this process, and the page
/// cache that it begins with.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kv/base/error.h"

namespace cairn::tools {

struct Measurement {
  double seconds = 0;
  double cpu_seconds = 0;  // user and system, all threads
  /// Largest resident set during the operation, or since the start of the process if the kernel
  /// cannot reset the mark (then peak_is_of_run is false).
  uint64_t peak_resident_bytes = 0;
  /// The part of it beyond what was resident at the beginning: the memory that the operation itself
  /// needed if the tensors were already in memory.
  uint64_t peak_beyond_tensors_bytes = 0;
  bool peak_is_of_run = false;
  /// Bytes that the kernel read from and wrote to devices for this process, if it reports them.
  std::optional<uint64_t> device_read_bytes;
  std::optional<uint64_t> device_written_bytes;
};

/// Measures from its construction to Stop. It counts the complete process, so only one meter may be
/// active at a time.
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

double SecondsSince(std::chrono::steady_clock::time_point begin);

/// Returns the mean of the two middle values if their number is even. Requires at least one value.
double Median(std::vector<double> values);

/// Writes back every file below `directory` and evicts it from the page cache, so that the next
/// read comes from the device.
Result<void> EvictFromPageCache(const std::string& directory);

}  // namespace cairn::tools
