#pragma once
/// Patterns over FQNs, as the command lines and Python take them.
///
/// The path separator is ".". A pattern without wildcards names a key and all below it. "*" matches
/// inside one path element, "**" across elements, "?" one character but ".", "[a-c]" one of a set
/// ("[!a-c]" one not of it; neither takes "."). Characters are UTF-8 code points. A leading "!"
/// excludes; with only exclusions everything else is taken. A key is taken if any inclusion matches
/// and no exclusion does. Cost of a match: length of the key times length of the pattern, at most.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/error.h"

namespace cairn::core {

class KeyPatterns {
 public:
  /// Takes everything.
  KeyPatterns() = default;
  /// kInvalidArgument: an empty pattern, or a set without its end.
  static Result<KeyPatterns> Parse(const std::vector<std::string>& patterns);

  bool Matches(std::string_view fqn) const;
  bool matches_everything() const { return includes_.empty() && excludes_.empty(); }
  /// FQN prefixes that cover all that Matches can take; {""} if nothing narrower is known.
  std::vector<std::string> ScanPrefixes() const;

 private:
  // One element of a wildcard pattern.
  struct Token {
    enum class Kind { kCharacter, kAnyCharacter, kSet, kStar, kStarStar } kind;
    uint32_t character = 0;
    bool negated = false;
    std::vector<std::pair<uint32_t, uint32_t>> ranges;  // of a set, both ends included
  };
  struct Pattern {
    std::string prefix;         // text before the first wildcard
    std::vector<Token> tokens;  // the whole pattern; none if there is no wildcard
    bool Matches(std::string_view fqn) const;
  };
  // Patterns of one kind. Literal ones are looked up, so that thousands of keys can be asked for.
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
