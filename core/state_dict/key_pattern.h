#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Patterns of FQNs, as the command-line tools and Python accept them.
///
/// The path separator is ".". A pattern without wildcards matches a key and all keys below it. "*"
/// matches inside one path element, "**" across elements, "?" one character except ".", and "[a-c]"
/// one of a set ("[!a-c]": none of it); sets do not match ".". A set of one character, such as
/// "[[]", is that character and no wildcard; so is "[!]". Characters are UTF-8 code points, and the
/// escapes of key_name.h: "\." is one character, and does not separate elements; any other "\" is a
/// character. A leading "!" excludes. A key matches if no exclusion matches it, and an inclusion
/// does or there are none. A match costs at most the length of the key times that of the pattern.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/base/error.h"

namespace cairn::core {

/// Returns the pattern without wildcards that is this FQN, whatever characters it has.
std::string LiteralPattern(std::string_view fqn);

class KeyPatterns {
 public:
  /// Matches every key.
  KeyPatterns() = default;
  /// kInvalidArgument: a pattern is empty, or a set is not closed.
  static Result<KeyPatterns> Parse(const std::vector<std::string>& patterns);

  bool Matches(std::string_view fqn) const;
  bool matches_everything() const { return includes_.empty() && excludes_.empty(); }
  /// Returns the inclusions if there are some and none has a wildcard; otherwise null. Keys that
  /// they match may still be excluded.
  const std::set<std::string, std::less<>>* literal_includes() const {
    return includes_.wildcards.empty() && !includes_.empty() ? &includes_.literals : nullptr;
  }
  /// Returns prefixes of the keys (kv::FqnKey) of all FQNs that can match, ascending; none begins
  /// with another one. {""} if nothing narrower is known.
  std::vector<std::string> ScanPrefixes() const;

 private:
  // One element of a wildcard pattern.
  struct Token {
    enum class Kind { kCharacter, kAnyCharacter, kSet, kStar, kStarStar } kind;
    uint32_t character = 0;
    bool negated = false;
    std::vector<std::pair<uint32_t, uint32_t>> ranges;  // ranges of a set; both ends are included
  };
  struct Pattern {
    std::string prefix;         // text before the first wildcard, without escapes
    std::vector<Token> tokens;  // the whole pattern; none if there is no wildcard
    bool Matches(std::string_view fqn) const;
  };
  // Inclusions or exclusions. Literals are looked up, so that thousands of them are fast.
  struct Set {
    std::vector<Pattern> wildcards;
    std::set<std::string, std::less<>> literals;
    bool empty() const { return wildcards.empty() && literals.empty(); }
    bool Matches(std::string_view fqn) const;
  };
  static Result<Pattern> ParseOne(std::string_view text);

  Set includes_;
  Set excludes_;
};

}  // namespace cairn::core
