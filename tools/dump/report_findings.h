#pragma once
/// The most important facts of a report, as sentences.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/inspect/report.h"

namespace cairn::tools {

struct Finding {
  enum class Level { kBad, kWarning, kGood, kInfo };
  std::string_view topic;  // "nan", "inf", "growth", "unchanged", "health", "space"
  Level level = Level::kInfo;
  std::string title;                 // a sentence
  std::string text;                  // further sentences; may be empty
  std::vector<std::string> details;  // items of a list; may be empty
  std::optional<size_t> module;      // to be shown
  std::optional<uint64_t> step;      // to be shown
};

/// Returns "bad", "warning", "good" or "info".
std::string_view LevelName(Finding::Level level);

/// Returns a name that is safe to show: escaped, and without its middle if it is long.
std::string ShortName(std::string_view name);

/// Returns the path of a module, such as "model.layers.0", which is safe to show.
std::string ModulePath(const core::Report& report, size_t module);

/// Returns the findings, the most urgent first.
std::vector<Finding> FindingsOf(const core::Report& report);

}  // namespace cairn::tools
