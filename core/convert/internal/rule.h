#pragma once
/// Parsed rules.

#include <re2/re2.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "schema/dtype.h"

namespace cairn::core::internal {

enum class RuleKind {
  kRename,
  kDrop,
  kSplit,
  kConcat,
  kStack,
  kUnstack,
  kPermute,
  kRearrange,
  kCast,
  kDequantize
};

/// A regular expression and what the first match in a key is replaced by.
struct NamePattern {
  std::string text;
  std::unique_ptr<const RE2> regex;
  std::vector<std::string> templates;  // one per name that the rule derives from a key

  /// Matches `key`. Returns the derived names; nothing if there is no match. `index`, if not null,
  /// receives the text of group `group`.
  std::optional<std::vector<std::string>> Derive(const std::string& key, int group = 0,
                                                 std::string* index = nullptr) const;
};

/// One rule. Which fields have a meaning depends on the kind.
struct Rule {
  RuleKind kind = RuleKind::kRename;
  size_t position = 0;                            // in the list, from 1
  std::vector<NamePattern> patterns;              // several only for kRename
  size_t dim = 0;                                 // of the tensor, counted from the first one
  bool from_end = false;                          // `dim` counts from the last one: 1 is the last
  std::vector<uint64_t> sizes;                    // kSplit; empty: equal parts
  int group = 0;                                  // kStack: the group that contains the position
  std::vector<size_t> order;                      // kPermute, kRearrange
  std::vector<uint64_t> factors;                  // kRearrange; 0: what remains
  schema::DType dtype = schema::DType::kUnknown;  // kCast, kDequantize
  uint64_t block = 128;                           // kDequantize

  /// Returns kInvalidArgument that begins with the position and kind of the rule.
  std::unexpected<Error> Fails(std::string message, std::string_view key = {}) const;
};

struct RuleList {
  std::vector<Rule> rules;
};

/// Returns the JSON field that names the kind: "rename", "split", ...
std::string_view RuleName(RuleKind kind);

}  // namespace cairn::core::internal
