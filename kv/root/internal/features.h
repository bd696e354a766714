#pragma once
/// What a program must know to read a store, and to write it (docs/format/compatibility.md).

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"

namespace cairn::kv::internal {

inline constexpr size_t kMaxFeatures = 64;
inline constexpr size_t kMaxFeatureBytes = 64;

/// Names, ascending. This build knows none yet, so a list in a store is one of a newer build.
struct Features {
  std::vector<std::string> read;
  std::vector<std::string> write;  // of those that may be unknown to a reader
  friend bool operator==(const Features&, const Features&) = default;
};

/// Returns whether the names are valid, ascending, and not too many.
bool AreFeatures(std::span<const std::string> names);

/// kUnimplemented: a feature is unknown; names all that are.
Result<void> CheckCanRead(const Features& features);
/// kUnimplemented: a feature is unknown. `file` is the object that lists them.
Result<void> CheckCanWrite(const Features& features, std::string file);

}  // namespace cairn::kv::internal
