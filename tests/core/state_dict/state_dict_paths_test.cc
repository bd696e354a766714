// Flat and filtered state dicts, and prefixes.

#include "core/state_dict/state_dict_paths.h"

#include <gmock/gmock.h>

#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Fqns(const StateDict& state) {
  const auto leaves = FlattenTree(state.tree);
  EXPECT_TRUE(testing::IsOk(leaves));
  std::vector<std::string> fqns;
  for (const Leaf& leaf : leaves.value_or(std::vector<Leaf>{})) fqns.push_back(leaf.fqn);
  return fqns;
}

// {"model": {"layers.0.w": 0, "layers.1.w": 1}, "opt": [{"lr": 2}, {"lr": 3}], "none": {}}, with
// values in the order of the leaves.
StateDict SmallState() {
  StateDict state;
  auto model = state.root().Map("model", NodeKind::kOrderedDict);
  model.Value("layers.0.w", int64_t{0});
  model.Value("layers.1.w", int64_t{1});
  auto groups = state.root().List("opt");
  groups.Map("").Value("lr", int64_t{2});
  groups.Map("").Value("lr", int64_t{3});
  state.root().Map("none");
  return state;
}

TEST(FlattenStateDictTest, GivesOneDictByFqn) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const FlatState flat, FlattenStateDict(SmallState()));
  EXPECT_EQ(flat.flat.tree.nodes.size(), 5u);
  EXPECT_EQ(flat.flat.tree.nodes[3].key, "opt.0.lr");
  EXPECT_THAT(Fqns(flat.flat),
              ElementsAre("model.layers.0.w", "model.layers.1.w", "opt.0.lr", "opt.1.lr"));
}

TEST(FlattenStateDictTest, RefusesTwoLeavesOfOneName) {
  StateDict state;
  state.root().Map("a").Value("b", int64_t{1});
  state.root().Value("a.b", int64_t{2});
  EXPECT_THAT(FlattenStateDict(state), IsError(ErrorCode::kInvalidArgument, "a.b"));
}

TEST(UnflattenStateDictTest, TakesAnyOrderAndLeavesOutWhatIsMissing) {
  const StateDict state = SmallState();
  StateDict flat;
  flat.root().Value("opt.1.lr", int64_t{3});
  flat.root().Tensor("model.layers.0.w", {.dtype = DType::kInt8, .shape = {0}});
  CAIRN_ASSERT_OK_AND_ASSIGN(const StateDict nested, UnflattenStateDict(flat, state.tree));
  EXPECT_THAT(Fqns(nested), ElementsAre("model.layers.0.w", "opt.1.lr"));
  EXPECT_EQ(nested.tensors.size(), 1u);
  EXPECT_EQ(nested.values, std::vector<Value>{int64_t{3}});
}

TEST(UnflattenStateDictTest, RefusesKeysThatTheTreeLacks) {
  StateDict flat;
  flat.root().Value("opt.2.lr", int64_t{3});
  EXPECT_THAT(UnflattenStateDict(flat, SmallState().tree),
              IsError(ErrorCode::kInvalidArgument, "opt.2.lr"));
}

TEST(FilterStateDictTest, KeepsPrefixesAndWhatThePatternsTake) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const KeyPatterns patterns,
                             KeyPatterns::Parse({"**.lr", "model", "!**.1.w"}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StateDict kept, FilterStateDict(SmallState(), patterns));
  EXPECT_THAT(Fqns(kept), ElementsAre("model.layers.0.w", "opt.0.lr", "opt.1.lr"));
  EXPECT_EQ(kept.values, (std::vector<Value>{int64_t{0}, int64_t{2}, int64_t{3}}));
}

TEST(StripPrefixTest, ContainersAtThePrefixBecomeTheRoot) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const StateDict model, StripPrefix(SmallState(), "model."));
  EXPECT_THAT(Fqns(model), ElementsAre("layers.0.w", "layers.1.w"));
  EXPECT_EQ(model.tree.nodes[0].kind, NodeKind::kOrderedDict);
  CAIRN_ASSERT_OK_AND_ASSIGN(const StateDict groups, StripPrefix(SmallState(), "opt."));
  EXPECT_THAT(Fqns(groups), ElementsAre("0.lr", "1.lr"));
  EXPECT_EQ(groups.tree.nodes[0].kind, NodeKind::kList);
  EXPECT_EQ(groups.tree.nodes[1].key_kind, KeyKind::kIndex);
}

TEST(StripPrefixTest, PrefixesMayEndInsideAKey) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const StateDict layer, StripPrefix(SmallState(), "model.layers."));
  EXPECT_THAT(Fqns(layer), ElementsAre("0.w", "1.w"));
  EXPECT_EQ(layer.values, (std::vector<Value>{int64_t{0}, int64_t{1}}));
  CAIRN_ASSERT_OK_AND_ASSIGN(const StateDict first, StripPrefix(SmallState(), "model.layers.0."));
  EXPECT_THAT(Fqns(first), ElementsAre("w"));
}

TEST(StripPrefixTest, WithoutAnyLeafNothingIsLeft) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const StateDict none, StripPrefix(SmallState(), "modell"));
  EXPECT_EQ(none.tree, StateDict().tree);
  EXPECT_THAT(none.values, IsEmpty());
  CAIRN_ASSERT_OK_AND_ASSIGN(const StateDict whole, StripPrefix(SmallState(), ""));
  EXPECT_EQ(whole.tree, SmallState().tree);
}

TEST(StripPrefixTest, RefusesContainersThatWouldShareAKey) {
  StateDict state;
  state.root().Map("a").Map("b.c").Value("e", int64_t{1});
  state.root().Map("a.b").Map("c").Value("d", int64_t{2});
  EXPECT_THAT(StripPrefix(state, "a.b."), IsError(ErrorCode::kInvalidArgument, "'a.b.'"));
}

// A random tree whose keys may contain dots.
void Grow(SeededRandom& random, StateDict::Builder container, int depth, int64_t& next) {
  const uint64_t children = random.Between(0, 4);
  for (uint64_t i = 0; i < children; ++i) {
    const std::string key = std::to_string(i) + (random.Chance(0.3) ? "." : "") + "k";
    if (random.Chance(0.2)) container.WithKeyKind(KeyKind::kInt);
    if (depth == 0 || random.Chance(0.4)) {
      container.Value(key, next++);
    } else if (random.Chance(0.4)) {
      Grow(random, container.List(key), depth - 1, next);
    } else {
      Grow(random, container.Map(key), depth - 1, next);
    }
  }
}

// A model of each function that uses only FQNs and values.
TEST(StateDictPathsTest, RandomTreesKeepTheirLeaves) {
  SeededRandom random;
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    StateDict state;
    int64_t next = 0;
    Grow(random, state.root(), 3, next);
    const auto flat = FlattenStateDict(state);
    if (!flat) {
      EXPECT_EQ(flat.error().code, ErrorCode::kInvalidArgument);
      continue;
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const StateDict nested, UnflattenStateDict(flat->flat, flat->tree));
    ASSERT_EQ(nested.tree, state.tree);
    ASSERT_EQ(nested.values, state.values);

    const auto fqns = Fqns(state);
    if (fqns.empty()) continue;
    const std::string& chosen = fqns[random.Between(0, fqns.size() - 1)];
    const std::string prefix = chosen.substr(0, random.Between(0, chosen.size()));
    const auto stripped = StripPrefix(state, prefix);
    if (!stripped) continue;  // keys that would collide, tested above
    std::vector<std::string> rest;
    std::vector<Value> values;
    for (size_t i = 0; i < fqns.size(); ++i) {
      if (fqns[i].size() <= prefix.size() || !fqns[i].starts_with(prefix)) continue;
      rest.push_back(fqns[i].substr(prefix.size()));
      values.push_back(state.values[i]);
    }
    ASSERT_EQ(Fqns(*stripped), rest) << "prefix " << prefix;
    ASSERT_EQ(stripped->values, values);
  }
}

}  // namespace
}  // namespace cairn::core
