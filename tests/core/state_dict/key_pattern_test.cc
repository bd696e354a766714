#include "core/state_dict/key_pattern.h"

#include "kv/base/key.h"
#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using ::testing::ElementsAre;

bool Matches(const std::vector<std::string>& patterns, std::string_view fqn) {
  const auto parsed = KeyPatterns::Parse(patterns);
  EXPECT_TRUE(cairn::testing::IsOk(parsed));
  return parsed && parsed->Matches(fqn);
}

struct Case {
  std::vector<std::string> patterns;
  std::vector<std::string> matched;
  std::vector<std::string> others;
};

// Among them are the examples of the documentation.
const Case kCases[] = {
    // A literal takes the key and all keys below it; it ends at any dot.
    {{"model.layers.1"},
     {"model.layers.1.attn.wq", "model.layers.1"},
     {"model.layers.10.attn.wq", "model.layers"}},
    {{"a", "b"}, {"b.c", "a."}, {"", "c"}},
    {{"a."}, {"a.", "a..b"}, {"a.b"}},
    {{"."}, {"."}, {}},
    // "*" stays inside one element, and "**" crosses elements.
    {{"model.*.weight"}, {"model.wte.weight"}, {"model.h.0.weight"}},
    {{"model.*"}, {"model.wte"}, {"model.wte.weight"}},
    {{"**.weight"}, {"model.h.0.weight"}, {"model.h.0.bias"}},
    {{"model.**"}, {"model.h.0.weight"}, {}},
    {{"**"}, {""}, {}},
    // A set of one character is the character itself, so this is a literal.
    {{"h[[]0].w"}, {"h[0].w", "h[0].w.x"}, {"h0.w", "h[0]"}},
    {{"[!]a[*]"}, {"!a*", "!a*.b"}, {"!ab", "a*"}},
    {{"**", "![!]h[?].[[]*[]]"}, {"!h?.[w", "h?.[w]"}, {"!h?.[w]"}},
    {{"h[[]?[]]"}, {"h[0]"}, {"h[0].w", "h[.]"}},
    // "?" is one character, but no dot; here also one of two bytes.
    {{"h.?.w"}, {"h.3.w", "h.\xc3\xa9.w"}, {"h.13.w"}},
    {{"h?w"}, {}, {"h.w"}},
    // Sets have ranges and negation, and do not match a dot.
    {{"h.[a-c]"}, {"h.b"}, {"h.d"}},
    {{"h.[!a-c]"}, {"h.d"}, {"h.a"}},
    {{"h[!a-c]d"}, {}, {"h.d"}},
    {{"h.[]x]"}, {"h.]"}, {}},
    {{"h.[0-9][0-9]"}, {"h.12"}, {}},
    // Exclusions win over inclusions, of which one suffices.
    {{"model", "!model.wte"}, {"model.wpe.weight"}, {"model.wte.weight"}},
    {{"!optimizer"}, {"model.wte.weight"}, {"optimizer.state"}},
    {{"!a"}, {}, {"a.b"}},
    {{"!**.bias"}, {}, {"h.0.bias"}},
    {{"a", "b.*"}, {"b.c"}, {"c"}},
};

TEST(KeyPatternTest, MatchesTheKeysOfEachCase) {
  for (const auto& [patterns, matched, others] : kCases) {
    for (const std::string& fqn : matched) {
      EXPECT_TRUE(Matches(patterns, fqn)) << ::testing::PrintToString(patterns) << " " << fqn;
    }
    for (const std::string& fqn : others) {
      EXPECT_FALSE(Matches(patterns, fqn)) << ::testing::PrintToString(patterns) << " " << fqn;
    }
  }
}

TEST(KeyPatternTest, RefusesWhatCannotBeMeant) {
  EXPECT_THAT(KeyPatterns::Parse({""}), IsError(ErrorCode::kInvalidArgument, "empty"));
  EXPECT_THAT(KeyPatterns::Parse({"!"}), IsError(ErrorCode::kInvalidArgument, "empty"));
  EXPECT_THAT(KeyPatterns::Parse({"h.[a-"}), IsError(ErrorCode::kInvalidArgument, "h.[a-"));
}

TEST(KeyPatternTest, ScanPrefixesCoverAndDoNotRepeat) {
  EXPECT_THAT(KeyPatterns::Parse({"a.b", "a.b.c", "d.*.e"})->ScanPrefixes(),
              ElementsAre(kv::FqnKey("a.b"), "a.b.", "d."));
  EXPECT_THAT(KeyPatterns::Parse({"!a"})->ScanPrefixes(), ElementsAre(""));
  EXPECT_THAT(KeyPatterns::Parse({"a", "**.b"})->ScanPrefixes(), ElementsAre(""));
  EXPECT_TRUE(KeyPatterns().matches_everything());
}

// A matcher with backtracking does not end.
TEST(KeyPatternTest, HostilePatternsStayCheap) {
  std::string pattern;
  for (int i = 0; i < 40; ++i) pattern += "*a";
  EXPECT_FALSE(Matches({pattern + "b"}, std::string(2000, 'a')));
}

}  // namespace
}  // namespace cairn::core
