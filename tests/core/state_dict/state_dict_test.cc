#include "core/state_dict/state_dict.h"

#include <cairn_schema/structure_generated.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/state_dict/internal/leaves.h"
#include "core/state_dict/internal/stored_tree.h"
#include "schema/record.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::SeededRandom;
using ::testing::ElementsAre;

std::vector<std::string> FqnsOf(const StateTree& tree) {
  const auto leaves = FlattenTree(tree);
  EXPECT_TRUE(cairn::testing::IsOk(leaves));
  std::vector<std::string> fqns;
  for (const Leaf& leaf : leaves.value_or(std::vector<Leaf>{})) fqns.push_back(leaf.fqn);
  return fqns;
}

// {"model": {"wte.weight": tensor, "empty": {}}, "steps": [1, (2,)], "opt": {0: 3}}
StateDict Sample() {
  StateDict state;
  auto model = state.root().Map("model");
  model.Tensor("wte.weight", {.dtype = DType::kFloat32, .shape = {0}});
  model.Map("empty");
  auto steps = state.root().List("steps");
  steps.Value("", int64_t{1});
  auto tuple = steps.List("", NodeKind::kTuple);
  tuple.Value("", int64_t{2});
  auto opt = state.root().Map("opt", NodeKind::kOrderedDict);
  opt.WithKeyKind(KeyKind::kInt).Value("0", int64_t{3});
  return state;
}

TEST(StateDictTest, FlattensInTreeOrder) {
  EXPECT_THAT(FqnsOf(Sample().tree),
              ElementsAre("model.wte.weight", "steps.0", "steps.1.0", "opt.0"));
}

TEST(StateDictTest, BuilderKeepsKindsAndKeys) {
  const StateDict state = Sample();
  const auto& nodes = state.tree.nodes;
  ASSERT_EQ(nodes.size(), 10u);
  EXPECT_EQ(nodes[0].child_count, 3u);
  EXPECT_EQ(nodes[4], (Node{NodeKind::kList, KeyKind::kString, "steps", 2}));
  EXPECT_EQ(nodes[6], (Node{NodeKind::kTuple, KeyKind::kIndex, "1", 1}));
  EXPECT_EQ(nodes[9], (Node{NodeKind::kValue, KeyKind::kInt, "0", 0}));
  EXPECT_THAT(state.slot, ElementsAre(0, 0, 1, 2));
}

// Decodes a record of ten nodes of which all have the same key.
Result<StateTree> DecodeNodesOfOneKey(KeyKind key_kind) {
  constexpr size_t kNodes = 10;
  flatbuffers::FlatBufferBuilder builder;
  const std::vector<uint8_t> zeros(kNodes);
  const std::vector key_kinds(kNodes, static_cast<uint8_t>(key_kind));
  const std::vector keys(kNodes, builder.CreateString(std::string(1000, 'k')));
  const auto keys_at = builder.CreateVector(keys);
  const auto kinds_at = builder.CreateVectorScalarCast<schema::NodeKind>(zeros.data(), kNodes);
  const auto key_kinds_at =
      builder.CreateVectorScalarCast<schema::KeyKind>(key_kinds.data(), kNodes);
  const auto counts_at = builder.CreateVector(std::vector<uint32_t>(kNodes));
  builder.Finish(schema::CreateStructureRecord(builder, schema::kRecordVersion, kinds_at,
                                               key_kinds_at, keys_at, counts_at),
                 schema::StructureRecordIdentifier());
  return DecodeTree(std::as_bytes(std::span(builder.GetBufferPointer(), builder.GetSize())));
}

TEST(StateDictTest, NodesThatShareAKeyAreRefused) {
  // Otherwise a record of 3 MiB could fill 100 GiB of memory.
  EXPECT_THAT(DecodeNodesOfOneKey(KeyKind::kString),
              IsError(ErrorCode::kDataLoss, "longer than it"));
}

TEST(StateDictTest, KeysOfTheKindOfTheRootAreRefused) {
  EXPECT_THAT(DecodeNodesOfOneKey(KeyKind::kRoot),
              IsError(ErrorCode::kDataLoss, "the kind of the root"));
}

TEST(StateDictTest, RootMayBeALeaf) {
  StateTree tree;
  tree.nodes.push_back({.kind = NodeKind::kTensor});
  EXPECT_THAT(FqnsOf(tree), ElementsAre(""));
}

TEST(StateDictTest, RefusesTwoLeavesOfOneName) {
  StateDict state;
  state.root().Value("a.b", int64_t{1});
  auto a = state.root().Map("a");
  a.Value("b", int64_t{2});
  EXPECT_THAT(FlattenTree(state.tree), IsError(ErrorCode::kInvalidArgument, "a.b"));
}

TEST(StateDictTest, RefusesNulInKeys) {
  StateDict state;
  state.root().Value(std::string_view("bad\0key", 7), int64_t{1});
  EXPECT_THAT(FlattenTree(state.tree), IsError(ErrorCode::kInvalidArgument, "bad"));
}

TEST(StateDictTest, RefusesCountsThatDoNotAddUp) {
  StateTree too_few = Sample().tree;
  too_few.nodes[0].child_count = 9;
  EXPECT_THAT(FlattenTree(too_few), IsError(ErrorCode::kDataLoss, "too early"));
  StateTree too_many = Sample().tree;
  too_many.nodes[0].child_count = 1;
  EXPECT_THAT(FlattenTree(too_many), IsError(ErrorCode::kDataLoss, "outside"));
  StateTree leaf_with_children = Sample().tree;
  leaf_with_children.nodes[2].child_count = 1;
  EXPECT_THAT(FlattenTree(leaf_with_children), IsError(ErrorCode::kDataLoss, "leaf"));
  EXPECT_THAT(FlattenTree(StateTree{}), IsError(ErrorCode::kDataLoss, "root"));
}

TEST(StateDictTest, RefusesMoreLevelsThanTheLimit) {
  for (const size_t levels : {kMaxTreeLevels, kMaxTreeLevels + 1}) {
    StateTree tree;
    for (size_t i = 0; i < levels; ++i) tree.nodes.push_back(Node{.key = "a", .child_count = 1});
    tree.nodes.push_back(Node{.kind = NodeKind::kValue, .key = "b"});
    EXPECT_EQ(FlattenTree(tree).has_value(), levels == kMaxTreeLevels);
  }
}

TEST(StateDictTest, RecordRoundTrips) {
  const StateTree tree = Sample().tree;
  CAIRN_ASSERT_OK_AND_ASSIGN(const StateTree decoded, DecodeTree(EncodeTree(tree)));
  EXPECT_EQ(decoded, tree);
}

TEST(StateDictTest, FlippedBitsInARecordNeverCrash) {
  const auto record = EncodeTree(Sample().tree);
  for (size_t bit = 0; bit < record.size() * 8; ++bit) {
    auto damaged = record;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const auto tree = DecodeTree(damaged);
    if (tree) (void)FlattenTree(*tree);  // may succeed, because the text of a key is arbitrary
  }
}

// fuzz_tensors compares a selection in a stored tree with PruneTree, also in damaged records.
TEST(StoredTreeTest, DeepTreesDoNotExhaustTheStack) {
  constexpr int kDepth = 200'000;
  StateTree tree;
  tree.nodes.assign(kDepth,
                    Node{.kind = NodeKind::kDict, .key_kind = KeyKind::kString, .child_count = 1});
  tree.nodes.front().key_kind = KeyKind::kRoot;
  tree.nodes.push_back({.kind = NodeKind::kValue, .key_kind = KeyKind::kString});
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto stored, internal::StoredTree::Open(EncodeTree(tree)));
  EXPECT_EQ(stored->Select({std::string(kDepth - 1, '.')}), tree);
}

TEST(StoredTreeTest, ALeafAsRootIsNeverSelected) {
  const StateTree tree{.nodes = {{.kind = NodeKind::kTensor}}};
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto stored, internal::StoredTree::Open(EncodeTree(tree)));
  EXPECT_EQ(stored->Select({"a"}), StateTree{.nodes = {Node{}}});
}

// Keys with "." and with the characters before and after it, in any order.
TEST(StoredTreeTest, ManyLiteralsSelectWhatPruningLeaves) {
  SeededRandom random;
  const auto key = [&] {
    std::string text;
    for (uint64_t left = random.Between(1, 4); left > 0; --left)
      text += "ab-./"[random.Between(0, 4)];
    return text;
  };
  int compared = 0;
  for (int round = 0; round < 2000; ++round) {
    StateDict state;
    for (uint64_t left = random.Between(1, 6); left > 0; --left) {
      auto map = state.root().Map(key());
      for (uint64_t below = random.Between(0, 3); below > 0; --below) map.Value(key(), int64_t{0});
      state.root().Value(key(), int64_t{0});
    }
    const auto leaves = FlattenTree(state.tree);
    if (!leaves) continue;  // two FQNs are equal
    internal::LiteralKeys literals = {key()};
    for (const Leaf& leaf : *leaves) {
      if (random.Chance(0.3)) literals.insert(leaf.fqn.substr(0, random.Between(1, 9)));
    }
    std::vector<bool> keep;
    for (const Leaf& leaf : *leaves) {
      keep.push_back(std::ranges::any_of(literals, [&](const std::string& literal) {
        return leaf.fqn == literal || leaf.fqn.starts_with(literal + '.');
      }));
    }
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto stored,
                               internal::StoredTree::Open(EncodeTree(state.tree)));
    EXPECT_EQ(stored->Select(literals), PruneTree(state.tree, keep));
    ++compared;
  }
  EXPECT_GT(compared, 500);
}

TEST(PruneTreeTest, AllKeptIsTheSameTree) {
  const StateTree tree = Sample().tree;
  EXPECT_EQ(PruneTree(tree, {true, true, true, true}), tree);
}

TEST(PruneTreeTest, DropsContainersThatLostAll) {
  const StateTree pruned = PruneTree(Sample().tree, {true, false, false, false});
  // The selection does not affect the empty dict next to the kept tensor.
  ASSERT_EQ(pruned.nodes.size(), 4u);
  EXPECT_EQ(pruned.nodes[0].child_count, 1u);
  EXPECT_EQ(pruned.nodes[1].key, "model");
  EXPECT_EQ(pruned.nodes[3].key, "empty");
}

TEST(PruneTreeTest, DropsEmptyContainersOutsideTheSelection) {
  const StateTree pruned = PruneTree(Sample().tree, {false, false, false, true});
  ASSERT_EQ(pruned.nodes.size(), 3u);
  EXPECT_EQ(pruned.nodes[1], (Node{NodeKind::kOrderedDict, KeyKind::kString, "opt", 1}));
}

TEST(PruneTreeTest, ASequenceThatLostElementsBecomesADictByIndex) {
  const StateTree pruned = PruneTree(Sample().tree, {false, false, true, false});
  ASSERT_EQ(pruned.nodes.size(), 4u);
  EXPECT_EQ(pruned.nodes[1], (Node{NodeKind::kDict, KeyKind::kString, "steps", 1}));
  EXPECT_EQ(pruned.nodes[2], (Node{NodeKind::kTuple, KeyKind::kInt, "1", 1}));
  EXPECT_EQ(pruned.nodes[3], (Node{NodeKind::kValue, KeyKind::kIndex, "0", 0}));
  EXPECT_THAT(FqnsOf(pruned), ElementsAre("steps.1.0"));
}

TEST(PruneTreeTest, NothingKeptIsAnEmptyDict) {
  const StateTree pruned = PruneTree(Sample().tree, {false, false, false, false});
  EXPECT_EQ(pruned.nodes, std::vector<Node>{Node{}});
}

void Grow(SeededRandom& random, StateDict::Builder builder, int depth) {
  const uint64_t children = random.Between(0, 4);
  for (uint64_t i = 0; i < children; ++i) {
    const std::string key = fmt::format("k{}", i);
    if (depth > 0 && random.Chance(0.5)) {
      Grow(random, random.Chance(0.5) ? builder.Map(key) : builder.List(key), depth - 1);
    } else {
      builder.Value(key, static_cast<int64_t>(i));
    }
  }
}

// Invariants: the leaves of a pruned tree are the kept ones, in the same order, and decoding an
// encoded tree returns it.
TEST(PruneTreeTest, KeepsExactlyTheKeptLeavesOfRandomTrees) {
  SeededRandom random;
  for (int round = 0; round < 300; ++round) {
    StateDict state;
    Grow(random, state.root(), 4);
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto leaves, FlattenTree(state.tree));
    std::vector<bool> keep;
    std::vector<std::string> expected;
    for (const Leaf& leaf : leaves) {
      keep.push_back(random.Chance(0.5));
      if (keep.back()) expected.push_back(leaf.fqn);
    }
    const StateTree pruned = PruneTree(state.tree, keep);
    ASSERT_EQ(FqnsOf(pruned), expected);
    CAIRN_ASSERT_OK_AND_ASSIGN(const StateTree decoded, DecodeTree(EncodeTree(pruned)));
    ASSERT_EQ(decoded, pruned);
  }
}

TEST(StateTreeTest, ARecordIsComparedWithATreeInEveryProperty) {
  StateDict state;
  state.root().Map("a").Value("0", int64_t{1});
  state.root().List("b").Value("", int64_t{2});
  const std::vector<std::byte> record = EncodeTree(state.tree);
  EXPECT_TRUE(internal::IsRecordOf(record, state.tree));
  const auto expect_other = [&](const auto& change) {
    StateTree tree = state.tree;
    change(tree.nodes);
    EXPECT_FALSE(internal::IsRecordOf(record, tree));
  };
  expect_other([](auto& nodes) { nodes[1].kind = NodeKind::kOrderedDict; });
  expect_other([](auto& nodes) { nodes[2].key_kind = KeyKind::kInt; });
  expect_other([](auto& nodes) { nodes[2].key = "1"; });
  expect_other([](auto& nodes) { nodes[2].form = KeyForm::kEscaped; });
  expect_other([](auto& nodes) { nodes[1].child_count = 2; });
  expect_other([](auto& nodes) { nodes.pop_back(); });
  state.tree.nodes[2].form = KeyForm::kEscaped;
  EXPECT_TRUE(internal::IsRecordOf(EncodeTree(state.tree), state.tree));
}

}  // namespace
}  // namespace cairn::core
