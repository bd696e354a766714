// Time, processor time, memory and device traffic of one operation in this process.

#include "tools/bench/measure.h"

#include <sys/resource.h>

#include <fstream>
#include <string>
#include <string_view>

namespace cairn::tools {
namespace {

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Returns the number after `name` in a file of "name: number" lines.
std::optional<uint64_t> ReadField(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    uint64_t value = 0;
    if (word == name && file >> value) return value;
  }
  return std::nullopt;
}

uint64_t StatusBytes(std::string_view name) {
  return ReadField("/proc/self/status", name).value_or(0) * 1024;
}

/// Resets VmHWM to the current resident set (proc(5), clear_refs, since Linux 4.0).
bool ResetPeak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

std::optional<uint64_t> Difference(std::optional<uint64_t> begin, std::optional<uint64_t> end) {
  if (!begin || !end) return std::nullopt;
  return *end - *begin;
}

}  // namespace

Meter::Meter()
    : resident_bytes_(StatusBytes("VmRSS:")),
      peak_reset_(ResetPeak()),
      device_read_bytes_(ReadField("/proc/self/io", "read_bytes:")),
      device_written_bytes_(ReadField("/proc/self/io", "write_bytes:")) {
  cpu_seconds_ = CpuSeconds();
  begin_ = std::chrono::steady_clock::now();
}

Measurement Meter::Stop() const {
  Measurement result;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  result.cpu_seconds = CpuSeconds() - cpu_seconds_;
  result.peak_resident_bytes = StatusBytes("VmHWM:");
  result.peak_is_of_run = peak_reset_;
  if (result.peak_resident_bytes > resident_bytes_) {
    result.peak_beyond_tensors_bytes = result.peak_resident_bytes - resident_bytes_;
  }
  result.device_read_bytes =
      Difference(device_read_bytes_, ReadField("/proc/self/io", "read_bytes:"));
  result.device_written_bytes =
      Difference(device_written_bytes_, ReadField("/proc/self/io", "write_bytes:"));
  return result;
}

}  // namespace cairn::tools
