// A progress line with rate and remaining time on standard error, for work that takes more than a
// second.

#include "tools/common/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "tools/common/quantities.h"
#include "tools/common/terminal.h"

namespace cairn::tools {
namespace {

// Set by a signal handler, and read by all threads.
std::atomic<bool> cancel_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void RequestCancel(int signal_number) {
  cancel_requested = true;
  std::signal(signal_number, SIG_DFL);
}

// How long work may take before a line is drawn. Tests set it to 0 in the environment.
std::chrono::milliseconds QuietTime() {
  const char* const text = std::getenv("CAIRN_TEST_QUIET_MS");
  return std::chrono::milliseconds(text == nullptr ? 1000 : std::atoi(text));
}

std::string CountRate(uint64_t count, double seconds) {
  const double rate = static_cast<double>(count) / seconds;
  if (rate < 10) return fmt::format("{:.1f}/s", rate);
  return GroupedCount(static_cast<uint64_t>(rate)) + "/s";
}

}  // namespace

void InstallCancelHandler() {
  std::signal(SIGINT, RequestCancel);
  std::signal(SIGTERM, RequestCancel);
}

bool CancelRequested() { return cancel_requested; }

ProgressLine::ProgressLine(std::string task, ProgressUnit unit)
    : task_(std::move(task)),
      unit_(unit),
      terminal_(StderrIsTerminal()),
      quiet_(QuietTime()),
      begin_(std::chrono::steady_clock::now()),
      last_draw_(begin_) {}

ProgressLine::~ProgressLine() { Clear(); }

void ProgressLine::Clear() {
  if (!drawn_) return;
  WriteStderr("\r\033[K");
  drawn_ = false;
}

core::Progress ProgressLine::callback(std::string task, ProgressUnit unit) {
  return [this, task = std::move(task), unit](uint64_t done, uint64_t total) {
    if (task != task_ || unit != unit_) {
      task_ = task;
      unit_ = unit;
      first_done_.reset();
    }
    return Update(done, total);
  };
}

bool ProgressLine::Update(uint64_t done, uint64_t total) {
  if (cancel_requested) return false;
  if (!terminal_) return true;
  const auto now = std::chrono::steady_clock::now();
  if (!first_done_ || total != total_ || done < *first_done_) {
    first_update_ = now;
    first_done_ = done;
    total_ = total;
  }
  if (now - begin_ < quiet_ || now - last_draw_ < quiet_ / 10) return true;
  last_draw_ = now;
  const auto amount = unit_ == ProgressUnit::kBytes ? HumanBytes : GroupedCount;
  std::string line = fmt::format("{} {} of {}", task_, amount(done), amount(total));
  if (total > 0) line += fmt::format(" ({})", Percent(done, total));
  const auto elapsed_time = now - first_update_;
  const double elapsed = std::chrono::duration<double>(elapsed_time).count();
  const uint64_t done_since = done - std::min(done, *first_done_);
  if (elapsed_time > quiet_ / 2 && done_since > 0) {
    const uint64_t left = total - std::min(total, done);
    const double left_seconds =
        elapsed * static_cast<double>(left) / static_cast<double>(done_since);
    line += "  " + (unit_ == ProgressUnit::kBytes ? HumanRate(done_since, elapsed)
                                                  : CountRate(done_since, elapsed));
    line += fmt::format("  {} left", HumanSeconds(left_seconds));
  }
  WriteStderr("\r\033[K" + line);
  drawn_ = true;
  return true;
}

}  // namespace cairn::tools
