#include "core/state_dict/internal/stored_tree.h"

#include <fmt/format.h>

#include "core/state_dict/key_pattern.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::SeededRandom;
using internal::LiteralKeys;
using internal::StoredTree;

std::shared_ptr<const StoredTree> Store(const StateTree& tree) {
  auto stored = StoredTree::Open(EncodeTree(tree));
  EXPECT_TRUE(IsOk(stored));
  return stored.value_or(nullptr);
}

// Decodes everything, and then prunes it.
StateTree Expected(const StateTree& tree, const LiteralKeys& literals) {
  const auto patterns = KeyPatterns::Parse({literals.begin(), literals.end()});
  EXPECT_TRUE(IsOk(patterns));
  const auto leaves = FlattenTree(tree);
  EXPECT_TRUE(IsOk(leaves));
  std::vector<bool> keep;
  for (const Leaf& leaf : *leaves) keep.push_back(patterns->Matches(leaf.fqn));
  return PruneTree(tree, keep);
}

// Lists of 10 layers, each with one tensor.
StateDict NestedState(int count) {
  StateDict state;
  for (int i = 0; i < count; i += 10) {
    auto layers = state.root().List(fmt::format("block{}", i / 10));
    for (int layer = 0; layer < 10; ++layer) {
      layers.Map("").Tensor("weight", {.dtype = DType::kInt8, .shape = {0}});
    }
  }
  return state;
}

void Grow(SeededRandom& random, StateDict::Builder builder, int depth, uint64_t max_children) {
  const uint64_t child_count = random.Between(0, max_children);
  for (uint64_t i = 0; i < child_count; ++i) {
    // Dots at the end, too, and characters that are less and greater than a dot.
    const std::string key =
        fmt::format("{}{}", std::vector{"a", "a.b", "a-", "b", "b.", "c.d.e"}[i % 6],
                    i < 6 ? "" : fmt::format("{}", i));
    const double shape = depth > 0 ? 0.5 : 0;
    if (random.Chance(shape)) {
      auto child = random.Chance(0.5) ? builder.Map(key) : builder.List(key);
      Grow(random, child, depth - 1, 4);
    } else {
      builder.Value(key, static_cast<int64_t>(i));
    }
  }
}

// Any text between the dots of an FQN, the FQN itself, and FQNs that do not exist.
LiteralKeys ChooseLiterals(SeededRandom& random, const std::vector<Leaf>& leaves) {
  LiteralKeys literals;
  const uint64_t count = random.Between(1, 3);
  for (uint64_t i = 0; i < count && !leaves.empty(); ++i) {
    std::string fqn = leaves[random.Between(0, leaves.size() - 1)].fqn;
    while (random.Chance(0.3)) fqn.resize(random.Between(0, fqn.size()));
    if (random.Chance(0.1)) fqn += ".x";
    literals.insert(fqn.empty() ? "none" : fqn);
  }
  if (literals.empty()) literals.insert("none");
  return literals;
}

TEST(StoredTreeTest, SelectsWhatAPrunedTreeHas) {
  SeededRandom random;
  for (int round = 0; round < 300; ++round) {
    StateDict state;
    Grow(random, state.root(), 4, 8);
    const auto leaves = FlattenTree(state.tree);
    if (!leaves) continue;  // two leaves have the same FQN
    const auto stored = Store(state.tree);
    for (int i = 0; i < 10; ++i) {
      const LiteralKeys literals = ChooseLiterals(random, *leaves);
      ASSERT_EQ(stored->Select(literals), Expected(state.tree, literals));
    }
  }
}

TEST(StoredTreeTest, AContainerThatKeepsAllLeavesKeepsItsEmptyContainers) {
  StateDict state;
  auto a = state.root().Map("a");
  a.Map("empty");
  a.Value("x", int64_t{1});
  a.List("also");
  a.Value("y", int64_t{2});
  state.root().Value("z", int64_t{3});
  const auto stored = Store(state.tree);
  EXPECT_EQ(stored->Select({"a.x", "a.y"}).nodes.size(), 6u);
  EXPECT_EQ(stored->Select({"a.x"}).nodes.size(), 3u);
}

TEST(StoredTreeTest, ALeafAsRootIsNeverSelected) {
  StateTree tree;
  tree.nodes.push_back({.kind = NodeKind::kTensor});
  EXPECT_EQ(Store(tree)->Select({"a"}), StateTree{.nodes = {Node{}}});
}

TEST(StoredTreeTest, TwoLeavesOfOneNameAreBothSelected) {
  StateDict state;
  state.root().Value("a.b", int64_t{1});
  state.root().Map("a").Value("b", int64_t{2});
  // The caller flattens the tree, and refuses it.
  EXPECT_THAT(FlattenTree(Store(state.tree)->Select({"a.b"})),
              IsError(ErrorCode::kInvalidArgument, "a.b"));
}

TEST(StoredTreeTest, RefusesCountsThatDoNotAddUp) {
  const StateTree tree = NestedState(10).tree;
  StateTree too_many = tree;
  too_many.nodes[0].child_count = 9;
  EXPECT_THAT(StoredTree::Open(EncodeTree(too_many)), IsError(ErrorCode::kDataLoss, "too early"));
  StateTree too_few = tree;
  too_few.nodes[1].child_count = 1;
  EXPECT_THAT(StoredTree::Open(EncodeTree(too_few)), IsError(ErrorCode::kDataLoss, "outside"));
  StateTree leaf_with_children = tree;
  leaf_with_children.nodes[3].child_count = 1;
  EXPECT_THAT(StoredTree::Open(EncodeTree(leaf_with_children)),
              IsError(ErrorCode::kDataLoss, "leaf"));
  EXPECT_THAT(StoredTree::Open(EncodeTree(StateTree{})), IsError(ErrorCode::kDataLoss, "root"));
}

TEST(StoredTreeTest, DeepTreesDoNotExhaustTheStack) {
  constexpr int kDepth = 200'000;
  StateTree tree;
  tree.nodes.assign(kDepth, Node{.kind = NodeKind::kDict, .child_count = 1});
  tree.nodes.push_back({.kind = NodeKind::kValue, .key_kind = KeyKind::kString});
  const std::string dots(kDepth - 1, '.');
  EXPECT_EQ(Store(tree)->Select({dots}), tree);
}

// A flipped bit is found, or changes keys, kinds and counts so that they are still consistent.
TEST(StoredTreeTest, FlippedBitsInARecordNeverCrash) {
  const auto record = EncodeTree(NestedState(20).tree);
  for (size_t bit = 0; bit < record.size() * 8; ++bit) {
    auto damaged = record;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    const auto stored = StoredTree::Open(damaged);
    const auto decoded = DecodeTree(damaged);
    if (stored) {
      ASSERT_TRUE(IsOk(decoded));
      (void)(*stored)->Select({"block1.3.weight", "block0"});
    } else if (decoded) {
      EXPECT_THAT(FlattenTree(*decoded), IsError(stored.error().code, stored.error().message));
    }
  }
}

}  // namespace
}  // namespace cairn::core
