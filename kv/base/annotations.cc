#include "kv/base/annotations.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace cairn::kv {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsNameCharacter(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' ||
         c == '-';
}

std::unexpected<Error> Invalid(std::string message) {
  return Fail(ErrorCode::kInvalidArgument, std::move(message));
}

}  // namespace

bool IsTagName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameLength &&
         std::ranges::all_of(name, IsNameCharacter) && !std::ranges::all_of(name, IsDigit);
}

Result<void> CheckTags(const TagChanges& changes) {
  if (changes.size() > kMaxTags) return Invalid(fmt::format("more than {} tags", kMaxTags));
  for (const auto& [name, step] : changes) {
    if (IsTagName(name)) continue;
    return Invalid(
        fmt::format("'{}' cannot be a tag: tags have 1 to {} letters, digits, '.', '_' "
                    "or '-', and not only digits",
                    name, kMaxNameLength));
  }
  return {};
}

Result<void> CheckAnnotations(const std::vector<Metric>& metrics, const std::string& note,
                              const std::vector<std::string>& tags) {
  if (metrics.size() > kMaxMetrics)
    return Invalid(fmt::format("more than {} metrics", kMaxMetrics));
  std::set<std::string_view> names;
  for (const Metric& metric : metrics) {
    const bool is_name =
        !metric.name.empty() && metric.name.size() <= kMaxNameLength &&
        std::ranges::all_of(metric.name, [](char c) { return IsNameCharacter(c) || c == '/'; });
    if (!is_name) {
      return Invalid(
          fmt::format("'{}' cannot be a metric: names have 1 to {} letters, digits, "
                      "'.', '_', '-' or '/'",
                      metric.name, kMaxNameLength));
    }
    if (!names.insert(metric.name).second) {
      return Invalid(fmt::format("the metric '{}' is given twice", metric.name));
    }
  }
  if (note.size() > kMaxNoteBytes) {
    return Invalid(
        fmt::format("the note has {} bytes; the limit is {}", note.size(), kMaxNoteBytes));
  }
  TagChanges changes;
  for (const std::string& tag : tags) changes[tag] = 0;
  return CheckTags(changes);
}

}  // namespace cairn::kv
