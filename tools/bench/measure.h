#pragma once
/// What the measurements have in common: the time, processor time and memory of one operation in
/// this process, the page cache that it begins with, and scratch directories.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
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
};

double SecondsSince(std::chrono::steady_clock::time_point begin);

/// Returns the mean of the two middle values if their number is even. Requires at least one value.
double Median(std::vector<double> values);

/// Writes back every file below `directory` and evicts it from the page cache, so that the next
/// read comes from the device.
Result<void> EvictFromPageCache(const std::string& directory);

/// A directory below --dir for a store or other files, which the destructor removes.
class ScratchDirectory {
 public:
  /// Only chooses the name, DIRECTORY/cairn-bench-VERB-PID, or a longer one if that exists.
  ScratchDirectory(const std::string& directory, std::string_view verb);
  ~ScratchDirectory() { Remove(); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  std::string path() const { return path_.string(); }
  /// Removes the directory. A failure is ignored: the user sees the directory, and the measurement
  /// is valid.
  void Remove() const;

 private:
  std::filesystem::path path_;
};

}  // namespace cairn::tools
