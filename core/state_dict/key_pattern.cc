// Matches FQNs by the set of pattern positions that are reachable, so that no pattern takes
// exponential time.

#include "core/state_dict/key_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/base/utf8.h"
#include "kv/base/key.h"

namespace cairn::core {
namespace {

constexpr std::string_view kWildcards = "*?[";
constexpr std::string_view kEscaped = "\\.IBNF";  // what a "\" escapes

// Returns the code point of `text` at `*at`, and advances `*at`. A byte that does not begin UTF-8
// counts as one character with a value above all code points, so that any bytes can be matched, and
// an escape as one with a value above these.
uint32_t NextCharacter(std::string_view text, size_t* at) {
  constexpr uint32_t kFirstEscapeValue = 0x120000;
  if (text[*at] == '\\' && *at + 1 < text.size() && kEscaped.contains(text[*at + 1])) {
    *at += 2;
    return kFirstEscapeValue + static_cast<uint8_t>(text[*at - 1]);
  }
  const std::optional<CodePoint> decoded = DecodeUtf8(text.substr(*at));
  *at += decoded ? decoded->length_bytes : 1;
  constexpr uint32_t kFirstByteValue = 0x110000;
  return decoded ? decoded->value : kFirstByteValue + static_cast<uint8_t>(text[*at - 1]);
}

}  // namespace

std::string LiteralPattern(std::string_view fqn) {
  std::string pattern;
  for (const char c : fqn) {
    const bool is_special = kWildcards.contains(c) || (c == '!' && pattern.empty());
    pattern += is_special ? fmt::format("[{}]", c) : std::string(1, c);
  }
  return pattern;
}

Result<KeyPatterns::Pattern> KeyPatterns::ParseOne(std::string_view text) {
  Pattern pattern;
  if (text.find_first_of(kWildcards) == std::string_view::npos) {
    pattern.prefix = text;
    return pattern;
  }
  bool has_wildcard = false;
  size_t at = 0;
  const auto add_wildcard = [&](Token token) {
    has_wildcard = true;
    pattern.tokens.push_back(std::move(token));
  };
  const auto add_character = [&](std::string_view bytes, uint32_t character) {
    if (!has_wildcard) pattern.prefix += bytes;
    pattern.tokens.push_back({Token::Kind::kCharacter, character, false, {}});
  };
  while (at < text.size()) {
    if (text[at] == '*') {
      const size_t end = std::min(text.find_first_not_of('*', at), text.size());
      add_wildcard({end - at >= 2 ? Token::Kind::kStarStar : Token::Kind::kStar, 0, false, {}});
      at = end;
    } else if (text[at] == '?') {
      add_wildcard({Token::Kind::kAnyCharacter, 0, false, {}});
      ++at;
    } else if (text[at] == '[') {
      Token set{Token::Kind::kSet, 0, false, {}};
      const size_t begin = ++at;
      if (text.substr(at, 2) != "!]" && text.substr(at, 1) == "!") {
        set.negated = true;
        ++at;
      }
      size_t first_end = 0;
      // A "]" at the beginning is a member of the set, as in shells.
      for (bool first = true; at < text.size() && (first || text[at] != ']'); first = false) {
        const uint32_t low = NextCharacter(text, &at);
        uint32_t high = low;
        if (first) first_end = at;
        if (at + 1 < text.size() && text[at] == '-' && text[at + 1] != ']') {
          ++at;
          high = NextCharacter(text, &at);
        }
        set.ranges.push_back({low, high});
      }
      if (at >= text.size()) {
        return Fail(
            ErrorCode::kInvalidArgument,
            fmt::format(
                "pattern '{}' has a '[' without its ']'; write '[[]' for the character itself",
                text));
      }
      const uint32_t only = set.ranges.front().first;
      if (first_end == at && !set.negated && only != '.') {
        add_character(text.substr(begin, at - begin), only);
      } else {
        add_wildcard(std::move(set));
      }
      ++at;
    } else {
      const size_t begin = at;
      const uint32_t character = NextCharacter(text, &at);
      add_character(text.substr(begin, at - begin), character);
    }
  }
  if (!has_wildcard) pattern.tokens.clear();
  return pattern;
}

bool KeyPatterns::Pattern::Matches(std::string_view fqn) const {
  if (!fqn.starts_with(prefix)) return false;
  const auto is_star = [this](size_t i) {
    return tokens[i].kind == Token::Kind::kStar || tokens[i].kind == Token::Kind::kStarStar;
  };
  // reached[i]: tokens [0, i) can match the text so far.
  std::vector<bool> reached(tokens.size() + 1), next(tokens.size() + 1);
  const auto skip_stars = [&](std::vector<bool>& positions) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (positions[i] && is_star(i)) positions[i + 1] = true;
    }
  };
  reached[0] = true;
  skip_stars(reached);
  for (size_t at = 0; at < fqn.size();) {
    const uint32_t character = NextCharacter(fqn, &at);
    next.assign(next.size(), false);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!reached[i]) continue;
      const Token& token = tokens[i];
      switch (token.kind) {
        case Token::Kind::kCharacter:
          if (character == token.character) next[i + 1] = true;
          break;
        case Token::Kind::kAnyCharacter:
          if (character != '.') next[i + 1] = true;
          break;
        case Token::Kind::kSet: {
          const bool member = std::ranges::any_of(token.ranges, [&](const auto& range) {
            return range.first <= character && character <= range.second;
          });
          if (character != '.' && member != token.negated) next[i + 1] = true;
          break;
        }
        case Token::Kind::kStar:
          if (character != '.') next[i] = true;
          break;
        case Token::Kind::kStarStar:
          next[i] = true;
          break;
      }
    }
    skip_stars(next);
    reached.swap(next);
  }
  return reached[tokens.size()];
}

Result<KeyPatterns> KeyPatterns::Parse(const std::vector<std::string>& patterns) {
  KeyPatterns result;
  for (const std::string& text : patterns) {
    const bool excludes = text.starts_with('!');
    const std::string_view body = std::string_view(text).substr(excludes ? 1 : 0);
    if (body.empty()) {
      return Fail(ErrorCode::kInvalidArgument, "a key pattern is empty; '**' matches every key");
    }
    CAIRN_TRY_ASSIGN(Pattern pattern, ParseOne(body));
    Set& set = excludes ? result.excludes_ : result.includes_;
    if (pattern.tokens.empty()) {
      set.literals.insert(std::move(pattern.prefix));
    } else {
      set.wildcards.push_back(std::move(pattern));
    }
  }
  return result;
}

bool KeyPatterns::Set::Matches(std::string_view fqn) const {
  // A literal matches the key itself and all keys below it.
  for (size_t end = 0; !literals.empty() && end <= fqn.size(); ++end) {
    end = std::min(fqn.find('.', end), fqn.size());
    if (literals.contains(fqn.substr(0, end))) return true;
  }
  return std::ranges::any_of(wildcards,
                             [fqn](const Pattern& pattern) { return pattern.Matches(fqn); });
}

bool KeyPatterns::Matches(std::string_view fqn) const {
  return (includes_.empty() || includes_.Matches(fqn)) && !excludes_.Matches(fqn);
}

std::vector<std::string> KeyPatterns::ScanPrefixes() const {
  if (includes_.empty()) return {""};
  std::vector<std::string> prefixes;
  for (const std::string& literal : includes_.literals) {
    prefixes.push_back(kv::FqnKey(literal));
    prefixes.push_back(literal + '.');
  }
  for (const Pattern& pattern : includes_.wildcards) prefixes.push_back(pattern.prefix);
  std::ranges::sort(prefixes);
  // After sorting, a prefix immediately precedes everything that it covers.
  std::vector<std::string> covering;
  for (std::string& prefix : prefixes) {
    if (covering.empty() || !prefix.starts_with(covering.back())) {
      covering.push_back(std::move(prefix));
    }
  }
  return covering;
}

}  // namespace cairn::core
