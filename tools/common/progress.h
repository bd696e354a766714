#pragma once
/// A progress line with rate and time left, on standard error, for work that takes over a second.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base/progress.h"


namespace cairn::tools::internal {

/// Draws nothing where standard error is no terminal, and nothing in the first second. The first
/// SIGINT or SIGTERM cancels the work (see InstallCancelHandler), so that it ends tidily.
/// Threads: one, the one that works.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  /// Removes the line.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// False once the user asked to stop.
  bool Update(uint64_t done_bytes, uint64_t total_bytes);
  /// For core's calls; must not outlive this object.
  core::Progress callback() {
    return [this](uint64_t done, uint64_t total) { return Update(done, total); };
  }
  /// Removes the line so that something else can be printed; the next update draws it again.
  void Clear();

 private:
  std::string what_;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point begin_;
  // Of the first update: what goes on before it (records are read) must not spoil the rate.
  std::chrono::steady_clock::time_point first_update_;
  std::optional<uint64_t> first_done_bytes_;
  std::chrono::steady_clock::time_point last_draw_;
};

/// From now on the first SIGINT or SIGTERM sets a flag that ProgressLine reports; the second ends
/// the process as usual.
void InstallCancelHandler();

}  // namespace cairn::tools::internal
