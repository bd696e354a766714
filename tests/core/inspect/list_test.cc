#include <fmt/format.h>

#include "core/step/contents.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

using cairn::testing::IsError;
using ::testing::ElementsAre;

class ListTest : public StoreTest {
 protected:
  void SaveSample() {
    StateDict state;
    auto model = state.root().Map("model");
    auto layers = model.List("layers");
    for (int i = 0; i < 11; ++i) {
      auto layer = layers.Map("");
      layer.Tensor("w", tensor_.view());
      layer.Value("note", int64_t{i});
    }
    model.Tensor("wte", {DType::kInt8, {0}, {}, nullptr});
    Save(1, state);
  }
  std::vector<std::string> List(std::vector<std::string> patterns) {
    const auto parsed = KeyPatterns::Parse(patterns);
    EXPECT_TRUE(testing::IsOk(parsed));
    const auto contents = store->List(1, *parsed);
    EXPECT_TRUE(testing::IsOk(contents));
    std::vector<std::string> fqns;
    for (const TensorInfo& tensor : contents->tensors) fqns.push_back(tensor.fqn);
    for (const ValueInfo& value : contents->values) fqns.push_back(value.fqn);
    // The tree names the same keys.
    const auto leaves = FlattenTree(contents->tree);
    EXPECT_EQ(leaves->size(), fqns.size());
    return fqns;
  }
  TestTensor tensor_{DType::kInt8, {2}};
};

TEST_F(ListTest, ALiteralTakesOneLayerOnly) {
  SaveSample();
  EXPECT_THAT(List({"model.layers.1"}), ElementsAre("model.layers.1.w", "model.layers.1.note"));
}

TEST_F(ListTest, WildcardsAndExclusions) {
  SaveSample();
  EXPECT_THAT(List({"model.layers.?.w", "!model.layers.[0-7].*"}),
              ElementsAre("model.layers.8.w", "model.layers.9.w"));
  EXPECT_THAT(List({"!model.layers"}), ElementsAre("model.wte"));
  EXPECT_TRUE(List({"nothing"}).empty());
}

TEST_F(ListTest, OverlappingPatternsListAKeyOnce) {
  SaveSample();
  EXPECT_THAT(List({"model.wte", "model.w*", "model.wte"}), ElementsAre("model.wte"));
}

TEST_F(ListTest, NamesTheStepsThatExist) {
  SaveSample();
  EXPECT_THAT(store->List(2), IsError(ErrorCode::kNotFound, "1"));
}

}  // namespace
}  // namespace cairn::core
