#pragma once
/// Environment variables, which tests replace.

#include <cstdlib>
#include <functional>
#include <string>

namespace cairn::kv::internal {

/// Returns the value of a variable, "" if it is not set.
using Environment = std::function<std::string(const char* name)>;

inline std::string ProcessEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace cairn::kv::internal
