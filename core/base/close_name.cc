#include "core/base/close_name.h"

#include <algorithm>
#include <vector>

namespace cairn::core {
namespace {

constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxDifferences = 4;

/// Returns how many differences two words have, or more than `limit`.
size_t CountDifferences(std::string_view a, std::string_view b, size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > limit) return limit + 1;
  // Rows of the matrix of distances between the beginnings of a and b: the last two and this one.
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool is_exchanged =
          i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && a[i - 1] != b[j - 1];
      if (is_exchanged) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    if (std::ranges::min(row) > limit) return limit + 1;
    before_last = last;
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::optional<std::string> FindCloseName(std::string_view word,
                                         std::span<const std::string> names) {
  if (word.size() > kMaxNameBytes) return std::nullopt;
  size_t limit = std::min(kMaxDifferences, word.size() / 3);
  const std::string* closest = nullptr;
  for (const std::string& name : names) {
    if (name.empty() || name.size() > kMaxNameBytes || name == word) continue;
    const size_t differences = CountDifferences(word, name, limit);
    if (differences > limit) continue;
    closest = &name;
    limit = differences - 1;
  }
  if (closest == nullptr) return std::nullopt;
  return *closest;
}

}  // namespace cairn::core
