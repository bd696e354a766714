#pragma once
/// A progress line with rate and remaining time on standard error, for work that takes more than a
/// second.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/progress.h"

namespace cairn::tools {

enum class ProgressUnit : uint8_t {
  kBytes,
  kCount,  // any other unit
};

/// Draws nothing in the first second, or if standard error is not a terminal. The first SIGINT or
/// SIGTERM cancels the work (see InstallCancelHandler), so that it can clean up.
/// Threads: only the thread that does the work.
class ProgressLine {
 public:
  explicit ProgressLine(std::string task, ProgressUnit unit = ProgressUnit::kBytes);
  /// Removes the line.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Returns false once the user has asked to stop.
  bool Update(uint64_t done, uint64_t total);
  /// Returns a callback for core, which must not outlive this object.
  core::Progress callback() { return callback(task_, unit_); }
  /// Returns a callback for a part of the work that has its own name and unit, on the same line.
  core::Progress callback(std::string task, ProgressUnit unit);
  /// Removes the line so that other text can be printed; the next update draws the line again.
  void Clear();

 private:
  std::string task_;
  ProgressUnit unit_;
  bool terminal_;
  bool drawn_ = false;
  uint64_t total_ = 0;  // total of the last update; another one begins a new part
  const std::chrono::milliseconds quiet_;
  const std::chrono::steady_clock::time_point begin_;
  // Time of the first update: the rate excludes what precedes it, such as reading records.
  std::chrono::steady_clock::time_point first_update_;
  std::optional<uint64_t> first_done_;
  std::chrono::steady_clock::time_point last_draw_;
};

/// Makes the first SIGINT or SIGTERM set a flag that ProgressLine::Update returns. The second one
/// ends the process as usual.
void InstallCancelHandler();
/// Returns whether that flag is set.
bool CancelRequested();

}  // namespace cairn::tools
