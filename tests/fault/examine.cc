// Opens, verifies and loads.

#include "tests/fault/examine.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "kv/read/snapshot.h"
#include "kv/store.h"

namespace cairn::kv::testing {

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void WriteText(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

Examination Examine(const std::string& path, const Steps& expected) {
  const auto says = [](const Error& error) {
    return Examination{Verdict::kReported,
                       fmt::format("{}: {}", ErrorCodeName(error.code), error.ToString())};
  };
  const auto store = Store::Open(path, OpenMode::kRead);
  if (!store) return says(store.error());
  const auto snapshot = (*store)->Latest();
  if (!snapshot) return says(snapshot.error());
  const auto damage = Verify(**snapshot);
  if (!damage) return says(damage.error());
  if (!damage->empty()) return {Verdict::kReported, damage->front()};
  const auto found = LoadAllFrom(**store);
  if (!found) return says(found.error());
  return {*found == expected ? Verdict::kHarmless : Verdict::kMissed, ""};
}

}  // namespace cairn::kv::testing
