#pragma once
/// Whether a store reports damage.

#include <string>
#include <string_view>

#include "tests/fault/operations.h"

namespace cairn::kv::testing {

std::string ReadText(const std::string& path);
void WriteText(const std::string& path, std::string_view text);

enum class Verdict { kReported, kHarmless, kMissed };

struct Examination {
  Verdict verdict = Verdict::kMissed;
  std::string said;
};

/// Opens the store, verifies it and loads all its steps.
Examination Examine(const std::string& path, const Steps& expected);

}  // namespace cairn::kv::testing
