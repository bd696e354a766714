// The FQNs of keys: unique, and as long as nothing collides, the texts joined by ".".

#include "core/state_dict/key_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/state_dict/internal/stored_tree.h"
#include "core/state_dict/internal/tree_merge.h"
#include "core/state_dict/key_pattern.h"
#include "tests/support/result_matchers.h"

namespace cairn::core {
namespace {

using ::cairn::testing::IsError;
using ::testing::ElementsAre;

std::vector<std::string> NamesOf(const StateTree& tree) {
  const auto leaves = FlattenTree(tree);
  EXPECT_TRUE(leaves.has_value()) << leaves.error().ToString();
  std::vector<std::string> names;
  for (const Leaf& leaf : *leaves) names.push_back(leaf.fqn);
  return names;
}

std::vector<std::string> EscapedNames(StateDict state) {
  EscapeEqualNames(state.tree);
  return NamesOf(state.tree);
}

TEST(KeyNameTest, DotsInKeysAreNotEscapedWithoutNeed) {
  StateDict state;
  state.root().Value("layers.0.weight", int64_t{1});
  auto model = state.root().Map("model");
  model.Value("layers.0.weight", int64_t{2});
  model.Value("", int64_t{3});
  state.root().Value("model.version", int64_t{4});
  state.root().Map("empty");
  state.root().Value("empty.x", int64_t{5});
  EXPECT_THAT(EscapedNames(std::move(state)),
              ElementsAre("layers.0.weight", "model.layers.0.weight", "model.", "model.version",
                          "empty.x"));
}

TEST(KeyNameTest, OnlyKeysThatCollideAreEscaped) {
  StateDict state;
  state.root().Value("a.b.c", int64_t{1});
  auto a = state.root().Map("a");
  a.Value("b.c", int64_t{2});
  auto b = a.Map("b");
  b.Value("c", int64_t{3});
  b.Value("d", int64_t{4});
  auto ab = state.root().Map("a.b");
  ab.Value("c", int64_t{5});
  ab.Value("e", int64_t{6});
  EXPECT_THAT(EscapedNames(std::move(state)),
              ElementsAre("a\\.b\\.c", "a.b\\.c", "a.b.c", "a.b.d", "a\\.b.c", "a\\.b.e"));
}

TEST(KeyNameTest, BackslashesAreDoubled) {
  StateDict state;
  auto a = state.root().Map("a\\");
  a.Value("b", int64_t{1});
  state.root().Value("a\\.b", int64_t{2});
  EXPECT_THAT(EscapedNames(std::move(state)), ElementsAre("a\\\\.b", "a\\\\\\.b"));
}

TEST(KeyNameTest, KeysOfOtherTypesAreMarkedOnlyBesideAnEqualText) {
  StateDict state;
  state.root().WithKeyKind(KeyKind::kInt).Value("1", int64_t{1});
  state.root().Value("1", int64_t{2});
  state.root().WithKeyKind(KeyKind::kInt).Value("2", int64_t{3});
  state.root().WithKeyKind(KeyKind::kBool).Value("True", int64_t{4});
  state.root().Value("True", int64_t{5});
  state.root().WithKeyKind(KeyKind::kNone).Value("None", int64_t{6});
  state.root().Value("None", int64_t{7});
  state.root().WithKeyKind(KeyKind::kFloat).Value("1.5", int64_t{8});
  state.root().Value("1.5", int64_t{9});
  EXPECT_THAT(EscapedNames(std::move(state)), ElementsAre("\\I1", "1", "2", "\\BTrue", "True",
                                                          "\\NNone", "None", "\\F1\\.5", "1.5"));
}

// Small alphabets, so that nearly every tree has collisions.
void Grow(StateDict::Builder container, int depth, std::mt19937& random) {
  std::set<std::pair<int, std::string>> used;
  const unsigned count = random() % 5;
  for (unsigned i = 0; i < count; ++i) {
    std::string key;
    for (unsigned j = random() % 4; j > 0; --j) key += "ab.\\"[random() % 4];
    const bool is_int = random() % 4 == 0;
    if (is_int) key = "1";
    if (!is_int && random() % 4 == 0) key = "1";
    if (!used.emplace(is_int, key).second) continue;
    container.WithKeyKind(is_int ? KeyKind::kInt : KeyKind::kString);
    if (depth > 0 && random() % 2 == 0) {
      Grow(container.Map(key), depth - 1, random);
    } else {
      container.Value(key, int64_t{1});
    }
  }
}

TEST(KeyNameTest, EveryTreeHasDifferentNamesThatSelectTheirLeaf) {
  std::mt19937 random(7);
  int collisions = 0;
  for (int round = 0; round < 3000; ++round) {
    StateDict state;
    Grow(state.root(), 3, random);
    EscapeEqualNames(state.tree);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto leaves, FlattenTree(state.tree));
    const std::vector<std::byte> record = EncodeTree(state.tree);
    CAIRN_ASSERT_OK_AND_ASSIGN(const StateTree decoded, DecodeTree(record));
    EXPECT_EQ(decoded, state.tree);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto stored, internal::StoredTree::Open(record));
    std::set<std::string> texts;
    for (const Leaf& leaf : leaves) texts.insert(JoinedTexts(leaf.fqn));
    const bool collides = texts.size() < leaves.size();
    collisions += collides;
    EXPECT_EQ(collides, std::ranges::any_of(state.tree.nodes, [](const Node& node) {
                return node.form == KeyForm::kEscaped;
              }));
    for (const auto& [node, fqn] : leaves) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto pattern,
                                 KeyPatterns::Parse({fqn.empty() ? "**" : fqn}));
      EXPECT_TRUE(pattern.Matches(fqn));
      if (fqn.empty() || fqn.starts_with('!')) continue;
      std::vector<bool> keep(leaves.size());
      for (size_t j = 0; j < leaves.size(); ++j) keep[j] = pattern.Matches(leaves[j].fqn);
      EXPECT_EQ(stored->Select({fqn}), PruneTree(state.tree, keep)) << fqn;
    }
  }
  EXPECT_GT(collisions, 100);
}

TEST(KeyNameTest, NamesAreParsed) {
  for (const char* name : {"", "a", "a.b", "a\\\\b", "a\\.b", "\\I12", "a\\\\\\.b"}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const Node node, ParseName(name));
    EXPECT_EQ(NameOf(node), name);
  }
  for (const char* name :
       {"\\", "a\\", "a\\x", "a.b\\.c", "\\Ix", "a\\I1", "\\Fx", "\\I", "\\I007"}) {
    EXPECT_THAT(ParseName(name), IsError(ErrorCode::kInvalidArgument, "name of a key")) << name;
  }
}

TEST(KeyNameTest, PatternsTreatAnEscapedDotAsOneCharacterOfAKey) {
  const auto matches = [](const char* pattern, const char* fqn) {
    const auto parsed = KeyPatterns::Parse({pattern});
    EXPECT_TRUE(parsed.has_value()) << pattern;
    return parsed && parsed->Matches(fqn);
  };
  EXPECT_TRUE(matches("*", "a\\.b"));
  EXPECT_FALSE(matches("*", "a.b"));
  EXPECT_TRUE(matches("a?b", "a\\.b"));
  EXPECT_TRUE(matches("a[\\.]b", "a\\.b"));
  EXPECT_TRUE(matches("a\\.b", "a\\.b.c"));
  EXPECT_FALSE(matches("a", "a\\.b"));
  EXPECT_FALSE(matches("a.**", "a\\.b"));
  EXPECT_TRUE(matches("a\\\\*", "a\\\\b"));
  // A backslash that begins no escape, as in keys of verbatim form, is a character.
  EXPECT_TRUE(matches("a\\x", "a\\x"));
  EXPECT_TRUE(matches("a\\", "a\\.0"));
  EXPECT_TRUE(matches("a?x*", "a\\xy"));
  EXPECT_TRUE(matches("\\?", "\\*"));
}

TEST(KeyNameTest, RanksThatNameAKeyDifferentlyAreRefused) {
  StateDict both;
  both.root().Value("a.b", int64_t{1});
  both.root().Map("a").Value("b", int64_t{2});
  EscapeEqualNames(both.tree);
  StateDict one;
  one.root().Value("a.b", int64_t{1});
  EscapeEqualNames(one.tree);
  internal::TreeMerge merge;
  CAIRN_ASSERT_OK(merge.Add(both.tree));
  EXPECT_THAT(merge.Add(one.tree), IsError(ErrorCode::kInvalidArgument, "another rank"));
}

}  // namespace
}  // namespace cairn::core
