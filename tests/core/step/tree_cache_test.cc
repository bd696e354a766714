#include "core/step/internal/lookup.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using internal::StepView;
using internal::TreeCache;

class TreeCacheTest : public StoreTest {
 protected:
  void SaveKey(uint64_t step, const std::string& key) {
    StateDict state;
    state.root().Value(key, static_cast<int64_t>(step));
    Save(step, state);
  }
  StepView View(uint64_t step) {
    auto view = internal::ViewStep(store->kv(), Step(step));
    EXPECT_TRUE(testing::IsOk(view));
    return view.value_or(StepView{});
  }
  std::shared_ptr<const internal::StoredTree> Find(const StepView& view) {
    auto tree = trees_.Find(view);
    EXPECT_TRUE(testing::IsOk(tree));
    return tree.value_or(nullptr);
  }
  TreeCache trees_;
};

TEST_F(TreeCacheTest, DecodesEqualTreesOnce) {
  SaveKey(1, "a");
  SaveKey(2, "a");
  const auto first = Find(View(1));
  EXPECT_EQ(Find(View(1)), first);
  EXPECT_EQ(Find(View(2)), first);
}

TEST_F(TreeCacheTest, KeepsTheLastOfDifferentTrees) {
  SaveKey(1, "a");
  SaveKey(2, "b");
  const auto a = Find(View(1));
  const auto b = Find(View(2));
  EXPECT_NE(a, b);
  EXPECT_EQ(Find(View(2)), b);
  EXPECT_EQ(a->Select({"a"}).tree.nodes.size(), 2u);  // remains valid
}

TEST_F(TreeCacheTest, DoesNotKeepATreeUnderTheDigestOfAnother) {
  SaveKey(1, "a");
  StepView forged = View(1);
  forged.step.structure.lo ^= 1;
  EXPECT_NE(Find(forged), Find(forged));
}

}  // namespace
}  // namespace cairn::core
