// What rules do to names and shapes, and what is refused. Tests of the loaded bytes are in
// tests/python/test_convert.py.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "core/convert/converted_keys.h"
#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SourceKey Matrix(std::string fqn, Shape shape, DType dtype = DType::kFloat32) {
  return {std::move(fqn), true, dtype, std::move(shape)};
}

Result<std::vector<ConvertedKey>> Convert(const std::vector<SourceKey>& sources,
                                          std::string_view rules, const KeyCasts& casts = {}) {
  CAIRN_TRY_ASSIGN(const ConversionRules parsed, ConversionRules::Parse(rules));
  return ConvertKeys(sources, parsed, casts);
}

std::vector<std::string> Names(const std::vector<ConvertedKey>& keys) {
  std::vector<std::string> names;
  for (const ConvertedKey& key : keys) names.push_back(key.fqn);
  return names;
}

std::string Message(const std::vector<SourceKey>& sources, std::string_view rules) {
  const auto converted = Convert(sources, rules);
  EXPECT_FALSE(converted.has_value()) << rules;
  if (converted) return "";
  EXPECT_EQ(converted.error().code, ErrorCode::kInvalidArgument);
  return converted.error().ToString();
}

/// Checks that the pieces cover each element once.
void ExpectCovered(const ConvertedKey& key) {
  std::set<std::vector<uint64_t>> seen;
  for (const SourcePiece& piece : key.pieces) {
    for (uint64_t i = 0; i < MappedCount(piece.map); ++i) {
      std::vector<uint64_t> at = piece.map.target_offsets;
      uint64_t rest = i;
      for (const IndexAxis& axis : piece.map.axes) {
        at[axis.target_dim] += rest % axis.size * axis.target_step;
        rest /= axis.size;
      }
      EXPECT_TRUE(seen.insert(at).second);
      for (size_t d = 0; d < at.size(); ++d) EXPECT_LT(at[d], key.shape[d]);
    }
  }
  uint64_t count = 1;
  for (const uint64_t size : key.shape) count *= size;
  EXPECT_EQ(seen.size(), count);
}

TEST(ConversionRulesTest, RenamesTheFirstMatchAndKeepsOtherKeys) {
  const std::vector<SourceKey> sources = {Matrix("layers.3.wq.wq", {2}), Matrix("norm", {2})};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto keys,
                             Convert(sources, R"([{"rename": "(\\d+)\\.wq", "to": "\\1.q"}])"));
  EXPECT_THAT(Names(keys), ElementsAre("layers.3.q.wq", "norm"));
  EXPECT_TRUE(keys[0].is_whole);
}

TEST(ConversionRulesTest, OneRenameMayExchangeNames) {
  const std::vector<SourceKey> sources = {Matrix("a", {1}), Matrix("b", {2})};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto keys,
                             Convert(sources, R"([{"rename": {"^a$": "b", "^b$": "a"}}])"));
  EXPECT_THAT(Names(keys), ElementsAre("b", "a"));
  EXPECT_THAT(Message(sources, R"([{"rename": "^a$", "to": "b"}, {"rename": "^b$", "to": "a"}])"),
              AllOf(HasSubstr("rule 1"), HasSubstr("'a' and 'b' would have the same name")));
}

TEST(ConversionRulesTest, RefusesAmbiguousRenames) {
  EXPECT_THAT(Message({Matrix("abc", {1})}, R"([{"rename": {"a": "x", "c": "y"}}])"),
              AllOf(HasSubstr("'a' and 'c'"), HasSubstr("abc")));
}

TEST(ConversionRulesTest, SplitsAndConcatenates) {
  const std::vector<SourceKey> sources = {Matrix("qkv", {8, 3})};
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto keys,
      Convert(sources, R"([{"split": "qkv", "into": ["q", "k", "v"], "sizes": [4, 2, 2]}])"));
  EXPECT_THAT(Names(keys), ElementsAre("q", "k", "v"));
  EXPECT_EQ(keys[2].shape, (Shape{2, 3}));
  EXPECT_EQ(SourceBounds(keys[2].pieces[0].map), (Box{{6, 0}, {2, 3}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto joined,
                             Convert(sources, R"([{"split": "qkv", "into": ["q", "k", "v", "o"]},
                           {"concat": ["^v$", "q", "o"], "to": "vqo", "dim": -1}])"));
  EXPECT_THAT(Names(joined), ElementsAre("k", "vqo"));
  EXPECT_EQ(joined[1].shape, (Shape{2, 9}));
  ExpectCovered(joined[1]);
  EXPECT_THAT(Message(sources, R"([{"split": "qkv", "into": ["a", "b"], "sizes": [4, 5]}])"),
              AllOf(HasSubstr("9 in total"), HasSubstr("8, 3")));
  EXPECT_THAT(Message(sources, R"([{"concat": ["qkv", "z"], "to": "y"}])"), HasSubstr("no 'z'"));
}

TEST(ConversionRulesTest, StacksAndUnstacks) {
  std::vector<SourceKey> sources;
  for (int i = 11; i >= 0; --i) sources.push_back(Matrix(fmt::format("e.{}.w", i), {2, 3}));
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto keys, Convert(sources, R"([{"stack": "e\\.(\\d+)\\.w", "to": "e.w", "dim": 1}])"));
  ASSERT_THAT(Names(keys), ElementsAre("e.w"));
  EXPECT_EQ(keys[0].shape, (Shape{2, 12, 3}));
  EXPECT_EQ(sources[keys[0].pieces[10].source].fqn, "e.10.w");
  ExpectCovered(keys[0]);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto back,
                             Convert(sources, R"([{"stack": "e\\.(\\d+)\\.w", "to": "e.w"},
                                            {"unstack": "e.w", "to": "f.{i}.w"}])"));
  EXPECT_EQ(back.size(), 12);
  EXPECT_EQ(back[11].fqn, "f.11.w");
  EXPECT_EQ(back[11].shape, (Shape{2, 3}));
  sources.erase(sources.begin() + 4);
  EXPECT_THAT(Message(sources, R"([{"stack": "e\\.(\\d+)\\.w", "to": "e.w"}])"),
              HasSubstr("position 7 is missing"));
}

TEST(ConversionRulesTest, RearrangesWhatOtherRulesHaveMade) {
  // Factors that the parts of a concatenation do not fit, so that maps are divided.
  const std::vector<SourceKey> sources = {Matrix("a", {5, 2}), Matrix("b", {7, 2})};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto keys,
                             Convert(sources, R"([{"concat": ["a", "b"], "to": "c"},
                           {"rearrange": "c", "factors": [2, -1, 3], "order": [2, 0, 1]},
                           {"rearrange": "c", "factors": [4, 3], "order": [1, 0]},
                           {"permute": "c", "dims": [1, 0]}])"));
  ASSERT_EQ(keys.size(), 1);
  EXPECT_EQ(keys[0].shape, (Shape{2, 12}));
  ExpectCovered(keys[0]);
  std::vector<uint64_t> order(12);
  for (uint64_t i = 0; i < 12; ++i) {
    const uint64_t first = i % 3 * 4 + i / 6 * 2 + i / 3 % 2;
    order[i] = first % 3 * 4 + first / 3;
  }
  for (const SourcePiece& piece : keys[0].pieces) {
    EXPECT_EQ(piece.map.source_offsets[1], 0);
    const uint64_t row = piece.map.source_offsets[0] + (piece.source == 0 ? 0 : 5);
    EXPECT_EQ(piece.map.target_offsets[1], order[row]);
  }
}

TEST(ConversionRulesTest, RefusesShapesThatDoNotFit) {
  const std::vector<SourceKey> sources = {
      Matrix("a", {4, 2}), Matrix("b", {4, 3}), {"step", false, DType::kUnknown, {}}};
  EXPECT_THAT(Message(sources, R"([{"concat": ["a", "b"], "to": "c"}])"), HasSubstr("'a'"));
  EXPECT_THAT(Message(sources, R"([{"permute": "a", "dims": [0, 2, 1]}])"), HasSubstr("3 dim"));
  EXPECT_THAT(Message(sources, R"([{"rearrange": "a", "factors": [3, -1], "order": [1, 0]}])"),
              HasSubstr("product"));
  EXPECT_THAT(Message(sources, R"([{"split": "a", "into": ["x", "y"], "dim": 2}])"),
              HasSubstr("no dimension 2"));
  EXPECT_THAT(Message(sources, R"([{"split": "step", "into": ["x", "y"]}])"),
              HasSubstr("plain value"));
  EXPECT_THAT(Message(sources, R"([{"cast": "a", "dtype": "int8"}])"),
              HasSubstr("no conversion from float32 to int8"));
  EXPECT_THAT(Message({Matrix("w", {2, 2}, DType::kFloat8E4M3FN), Matrix("w_scale", {2, 1})},
                      R"([{"dequantize": "_scale", "weight": ""}])"),
              AllOf(HasSubstr("w_scale"), HasSubstr("1, 1")));
}

TEST(ConversionRulesTest, CastsFloatingPointTensorsOnly) {
  const std::vector<SourceKey> sources = {Matrix("a", {4}), Matrix("ids", {4}, DType::kInt64),
                                          Matrix("b", {4})};
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto keys,
      Convert(sources, "[]", {.floats = DType::kBFloat16, .by_key = {{"b", DType::kFloat16}}}));
  EXPECT_EQ(keys[0].dtype, DType::kBFloat16);
  EXPECT_EQ(keys[1].dtype, DType::kInt64);
  EXPECT_EQ(keys[2].dtype, DType::kFloat16);
}

TEST(ConversionRulesTest, RefusesMalformedRules) {
  const std::map<std::string, std::string> cases = {
      {"nonsense", "not JSON"},
      {"7", "not a JSON list"},
      {R"([{"rename": "(", "to": "x"}])", "missing"},
      {R"([{"rename": "a", "to": "\\1"}])", "\\1"},
      {R"([{"renam": "a", "to": "x"}])", "one of these fields"},
      {R"([{"rename": "a", "to": "x", "dim": 1}])", "no field 'dim'"},
      {R"([{"split": "a", "into": []}])", "no part"},
      {R"([{"stack": "a", "to": "x"}])", "needs a group"},
      {R"([{"unstack": "a", "to": "x"}])", "{i}"},
      {R"([{"permute": "a", "dims": [0, 0]}])", "permutation"},
      {R"([{"rearrange": "a", "factors": [-1, -1], "order": [1, 0]}])", "more than one -1"},
      {R"([{"cast": "a", "dtype": "float7"}])", "float7"},
      {R"([{"split": "a", "into": ["x"], "dim": 1e300}])", "integer"},
      {R"([{"split": "a", "into": ["x"], "dim": 18446744073709551615}])", "integer"},
  };
  for (const auto& [rules, message] : cases) {
    EXPECT_THAT(Message({Matrix("a", {4})}, rules), HasSubstr(message)) << rules;
  }
}

// Neither the error message nor a copy of such a value may recurse until the stack ends.
TEST(ConversionRulesTest, RefusesRulesThatAreNestedDeeply) {
  const std::string open(300'000, '['), close(300'000, ']');
  for (const std::string& rules : {R"([{"permute": "a", "dims": [)" + open + close + "]}]",
                                   R"({"rename": )" + open + close + "}", open + close, open}) {
    EXPECT_THAT(Message({}, rules), HasSubstr("nested too deeply"));
  }
}

TEST(ConversionRulesTest, AnEvilExpressionTakesLinearTime) {
  const std::string key(60'000, 'a');
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto keys,
                             Convert({Matrix(key, {1})}, R"([{"rename": "(a*)*b$", "to": "x"}])"));
  EXPECT_EQ(keys[0].fqn, key);
}

}  // namespace
}  // namespace cairn::core
