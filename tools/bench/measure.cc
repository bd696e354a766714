#include "tools/bench/measure.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>

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

/// Returns the number of KiB after `name` in /proc/self/status, in bytes.
uint64_t StatusBytes(std::string_view name) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    uint64_t kib = 0;
    if (word == name && file >> kib) return kib * 1024;
  }
  return 0;
}

/// Resets VmHWM to the current resident set (proc(5), clear_refs, since Linux 4.0).
bool ResetPeak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

/// Writes back everything that is dirty in the file system of `directory`, because dirty pages
/// cannot be evicted. One fsync per file would send as many flushes to the device, after which it
/// is slow for a while.
Result<void> WriteBack(const std::string& directory) {
  const int folder = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return Fail(SystemError(errno, "opening to sync", directory));
  const int failed = syncfs(folder) != 0 ? errno : 0;
  close(folder);
  if (failed != 0) return Fail(SystemError(failed, "syncing the file system", directory));
  return {};
}

}  // namespace

Meter::Meter() : resident_bytes_(StatusBytes("VmRSS:")), peak_reset_(ResetPeak()) {
  cpu_seconds_ = CpuSeconds();
  begin_ = std::chrono::steady_clock::now();
}

Measurement Meter::Stop() const {
  Measurement result{.seconds = SecondsSince(begin_),
                     .cpu_seconds = CpuSeconds() - cpu_seconds_,
                     .peak_resident_bytes = StatusBytes("VmHWM:"),
                     .peak_is_of_run = peak_reset_};
  if (result.peak_resident_bytes > resident_bytes_) {
    result.peak_beyond_tensors_bytes = result.peak_resident_bytes - resident_bytes_;
  }
  return result;
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Result<void> EvictFromPageCache(const std::string& directory) {
  CAIRN_TRY(WriteBack(directory));
  std::error_code error;
  std::filesystem::recursive_directory_iterator entries(directory, error);
  for (; !error && entries != std::filesystem::recursive_directory_iterator();
       entries.increment(error)) {
    if (!entries->is_regular_file(error)) continue;
    const int file = open(entries->path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return Fail(SystemError(errno, "opening to evict", entries->path().string()));
    const int failed = posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
    if (failed != 0) return Fail(SystemError(failed, "evicting", entries->path().string()));
  }
  if (error) return Fail(SystemError(error.value(), "listing files to evict", directory));
  return {};
}

ScratchDirectory::ScratchDirectory(const std::string& directory, std::string_view verb)
    : path_(std::filesystem::path(directory) / fmt::format("cairn-bench-{}-{}", verb, getpid())) {
  std::error_code ignored;
  while (std::filesystem::exists(path_, ignored)) path_ += "x";  // existing files are not ours
}

void ScratchDirectory::Remove() const {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace cairn::tools
