#include "core/state_dict/key_pattern.h"

#include <chrono>

#include "kv/base/key.h"
#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using ::testing::ElementsAre;

bool Matches(std::vector<std::string> patterns, std::string_view fqn) {
  const auto parsed = KeyPatterns::Parse(patterns);
  EXPECT_TRUE(cairn::testing::IsOk(parsed));
  return parsed && parsed->Matches(fqn);
}

// The examples of the documentation.
TEST(KeyPatternTest, LiteralTakesTheKeyAndAllBelow) {
  EXPECT_TRUE(Matches({"model.layers.1"}, "model.layers.1.attn.wq"));
  EXPECT_TRUE(Matches({"model.layers.1"}, "model.layers.1"));
  EXPECT_FALSE(Matches({"model.layers.1"}, "model.layers.10.attn.wq"));
  EXPECT_FALSE(Matches({"model.layers.1"}, "model.layers"));
}

TEST(KeyPatternTest, LiteralEndsAtAnyDot) {
  EXPECT_TRUE(Matches({"a", "b"}, "b.c"));
  EXPECT_TRUE(Matches({"a."}, "a."));
  EXPECT_TRUE(Matches({"a."}, "a..b"));
  EXPECT_FALSE(Matches({"a."}, "a.b"));
  EXPECT_TRUE(Matches({"."}, "."));
  EXPECT_TRUE(Matches({"a"}, "a."));
  EXPECT_FALSE(Matches({"a"}, ""));
  EXPECT_FALSE(Matches({"!a"}, "a.b"));
}

TEST(KeyPatternTest, StarStaysInsideOneElement) {
  EXPECT_TRUE(Matches({"model.*.weight"}, "model.wte.weight"));
  EXPECT_FALSE(Matches({"model.*.weight"}, "model.h.0.weight"));
  EXPECT_TRUE(Matches({"model.*"}, "model.wte"));
  EXPECT_FALSE(Matches({"model.*"}, "model.wte.weight"));
}

TEST(KeyPatternTest, StarStarCrossesElements) {
  EXPECT_TRUE(Matches({"**.weight"}, "model.h.0.weight"));
  EXPECT_TRUE(Matches({"model.**"}, "model.h.0.weight"));
  EXPECT_TRUE(Matches({"**"}, ""));
  EXPECT_FALSE(Matches({"**.weight"}, "model.h.0.bias"));
}

TEST(KeyPatternTest, QuestionMarkIsOneCharacterButNoDot) {
  EXPECT_TRUE(Matches({"h.?.w"}, "h.3.w"));
  EXPECT_FALSE(Matches({"h.?.w"}, "h.13.w"));
  EXPECT_FALSE(Matches({"h?w"}, "h.w"));
  EXPECT_TRUE(Matches({"h.?.w"}, "h.\xc3\xa9.w"));  // one code point, two bytes
}

TEST(KeyPatternTest, SetsTakeRangesAndNegation) {
  EXPECT_TRUE(Matches({"h.[a-c]"}, "h.b"));
  EXPECT_FALSE(Matches({"h.[a-c]"}, "h.d"));
  EXPECT_TRUE(Matches({"h.[!a-c]"}, "h.d"));
  EXPECT_FALSE(Matches({"h[!a-c]d"}, "h.d"));
  EXPECT_TRUE(Matches({"h.[]x]"}, "h.]"));
  EXPECT_TRUE(Matches({"h.[0-9][0-9]"}, "h.12"));
}

TEST(KeyPatternTest, ExclusionsWinOverInclusions) {
  EXPECT_FALSE(Matches({"model", "!model.wte"}, "model.wte.weight"));
  EXPECT_TRUE(Matches({"model", "!model.wte"}, "model.wpe.weight"));
  EXPECT_TRUE(Matches({"!optimizer"}, "model.wte.weight"));
  EXPECT_FALSE(Matches({"!optimizer"}, "optimizer.state"));
  EXPECT_FALSE(Matches({"!**.bias"}, "h.0.bias"));
}

TEST(KeyPatternTest, AnyInclusionSuffices) {
  EXPECT_TRUE(Matches({"a", "b.*"}, "b.c"));
  EXPECT_FALSE(Matches({"a", "b.*"}, "c"));
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
