#include "kv/root/internal/features.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace cairn::kv::internal {

bool AreFeatures(std::span<const std::string> names) {
  const auto is_name = [](const std::string& name) {
    return !name.empty() && name.size() <= kMaxFeatureBytes &&
           std::ranges::all_of(name, [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
           });
  };
  return names.size() <= kMaxFeatures && std::ranges::all_of(names, is_name) &&
         std::ranges::adjacent_find(names, std::greater_equal<>()) == names.end();
}

Result<void> CheckCanRead(const Features& features) {
  if (features.read.empty()) return {};
  return Fail(Error{.code = ErrorCode::kUnimplemented,
                    .message = fmt::format("to read the store, a program must know {}, which this "
                                           "build does not; use a newer Cairn",
                                           fmt::join(features.read, ", "))});
}

Result<void> CheckCanWrite(const Features& features, std::string file) {
  if (features.write.empty()) return {};
  return Fail(Error{.code = ErrorCode::kUnimplemented,
                    .message = fmt::format("to write the store, a program must know {}, which this "
                                           "build does not; use a newer Cairn, or open the store "
                                           "for reading",
                                           fmt::join(features.write, ", ")),
                    .file = std::move(file)});
}

}  // namespace cairn::kv::internal
