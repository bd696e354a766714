#include "core/inspect/internal/module_tree.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace cairn::core::internal {
namespace {

using ::testing::ElementsAre;

std::vector<SizedName> Sorted(std::vector<SizedName> names) {
  std::ranges::sort(names, {}, &SizedName::fqn);
  return names;
}

std::string PathOf(const ModuleTree& tree, uint32_t node) {
  std::string path;
  for (; node != 0; node = tree.nodes()[node].parent) {
    const auto& at = tree.nodes()[node];
    path = (at.is_rest ? "*" : at.name) + (path.empty() ? "" : "/") + path;
  }
  return path;
}

std::vector<std::string> Paths(const ModuleTree& tree) {
  std::vector<std::string> paths;
  for (uint32_t i = 1; i < tree.nodes().size(); ++i) paths.push_back(PathOf(tree, i));
  return paths;
}

TEST(ModuleTreeTest, DividesEverythingIfThereIsSpace) {
  ModuleTree tree(Sorted({{"m.b.w", 1}, {"m.b-c", 2}, {"m.b", 3}, {"m.a.w", 4}, {"z", 5}}), 100);

  EXPECT_THAT(Paths(tree), ElementsAre("m", "z", "m/a", "m/b", "m/b-c", "m/b", "m/a/w", "m/b/w"));
  EXPECT_EQ(PathOf(tree, tree.NodeOf("m.b.w")), "m/b/w");
  EXPECT_EQ(PathOf(tree, tree.NodeOf("m.b-c")), "m/b-c");
}

TEST(ModuleTreeTest, JoinsModulesThatHaveOnlyOnePart) {
  ModuleTree tree(Sorted({{"a.b.c.x", 1}, {"a.b.c.y", 1}}), 100);

  EXPECT_THAT(Paths(tree), ElementsAre("a.b.c", "a.b.c/x", "a.b.c/y"));
}

TEST(ModuleTreeTest, DividesTheLargestModulesFirst) {
  ModuleTree tree(Sorted({{"s.a", 1}, {"s.b", 1}, {"l.a", 9}, {"l.b", 9}}), 5);

  EXPECT_THAT(Paths(tree), ElementsAre("l", "s", "l/a", "l/b"));
  EXPECT_EQ(PathOf(tree, tree.NodeOf("s.b")), "s");
}

TEST(ModuleTreeTest, MergesTheSmallestPartsIntoARest) {
  std::vector<SizedName> names;
  for (uint64_t i = 0; i < 1000; ++i) names.push_back({fmt::format("m.{}.w", i), i});
  ModuleTree tree(Sorted(names), 600);

  EXPECT_LE(tree.nodes().size(), 600);
  EXPECT_EQ(PathOf(tree, tree.NodeOf("m.999.w")), "m/999/w");
  EXPECT_EQ(PathOf(tree, tree.NodeOf("m.7.w")), "m/*");
  std::map<uint32_t, size_t> children;
  for (const ModuleTree::Node& node : tree.nodes()) ++children[node.parent];
  for (const auto& [node, count] : children) EXPECT_LE(count, ModuleTree::kMaxChildren + 1);
}

TEST(ModuleTreeTest, PutsUnknownTensorsIntoTheSmallestModuleThatWouldContainThem) {
  ModuleTree tree(Sorted({{"m.a.x", 1}, {"m.a.y", 1}, {"m.b", 1}}), 100);

  EXPECT_EQ(PathOf(tree, tree.NodeOf("m.a.z")), "m/a");
  EXPECT_EQ(PathOf(tree, tree.NodeOf("m.c.z")), "m");
  EXPECT_EQ(tree.NodeOf("other"), 0);
  EXPECT_EQ(tree.NodeOf(".."), 0);
}

TEST(ModuleTreeTest, AcceptsHostileNames) {
  const std::string dots(10'000, '.');
  ModuleTree tree(Sorted({{"", 1}, {".", 1}, {dots, 1}, {dots + "a", 1}, {"a..b", 1}}), 50);

  EXPECT_LE(tree.nodes().size(), 50);
  for (const std::string& name : {std::string(), std::string("."), dots, dots + "a"}) {
    EXPECT_LT(tree.NodeOf(name), tree.nodes().size());
  }
}

TEST(ModuleTreeTest, HasOnlyTheRootWithoutTensors) {
  ModuleTree tree({}, 10);
  EXPECT_EQ(tree.nodes().size(), 1);
}

}  // namespace
}  // namespace cairn::core::internal
