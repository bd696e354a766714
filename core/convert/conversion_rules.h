#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Rules that describe how the names, shapes and dtypes of one checkpoint become those of another.

#include <memory>
#include <string_view>

#include "kv/base/error.h"

namespace cairn::core {

namespace internal {
struct RuleList;
}  // namespace internal

/// A list of rules, which is applied in order: each rule sees the result of those before it.
/// docs/conversion.md describes the JSON form. Ownership: shares the rules, which are immutable,
/// with its copies. Threads: safe.
class ConversionRules {
 public:
  /// Parses a JSON list of rules, or one rule. Regular expressions have the syntax of RE2, whose
  /// time is linear in the length of a key. kInvalidArgument: not such a list, a field that a rule
  /// does not have, or a malformed regular expression or template; names the rule by its position.
  static Result<ConversionRules> Parse(std::string_view json);

  const internal::RuleList& list() const { return *list_; }

 private:
  explicit ConversionRules(std::shared_ptr<const internal::RuleList> list);
  std::shared_ptr<const internal::RuleList> list_;
};

}  // namespace cairn::core
