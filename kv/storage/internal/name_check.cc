// The characters of names.

#include "kv/storage/internal/name_check.h"

#include <fmt/format.h>

#include <algorithm>

namespace cairn::kv::internal {
namespace {

// Independent of the locale.
bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

bool IsElement(std::string_view element) {
  return !element.empty() && element.front() != '.' &&
         std::ranges::all_of(element, IsNameCharacter);
}

}  // namespace

bool IsObjectName(std::string_view name) {
  for (size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/')) {
    if (!IsElement(name.substr(0, slash))) return false;
    name.remove_prefix(slash + 1);
  }
  return IsElement(name);
}

bool IsObjectPrefix(std::string_view prefix) {
  return prefix.empty() ||
         (prefix.back() == '/' && IsObjectName(prefix.substr(0, prefix.size() - 1)));
}

std::string ObjectPath(std::string_view address, std::string_view name) {
  return fmt::format("{}/{}", address, name);
}

}  // namespace cairn::kv::internal
