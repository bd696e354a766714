// A random life of a store against a model of it in memory: save, overwrite, delete, reopen; after
// each turn every step must hold exactly what was saved.

#include <fmt/format.h>

#include <map>

#include "tests/core/test_tensor.h"

namespace cairn::core {
namespace {

class RandomStateTest : public StoreTest {
 protected:
  using Model = std::map<std::string, TestTensor>;  // what one step holds

  Model Mutate(Model model, testing::SeededRandom& random) {
    for (int change = 0; change < 6; ++change) {
      const std::string fqn = fmt::format("k{}.w", random.Between(0, 12));
      const auto found = model.find(fqn);
      if (found == model.end()) {
        Shape shape(random.Between(0, 3));
        for (uint64_t& size : shape) size = random.Between(0, 40);
        const auto& info = schema::kDTypes[random.Between(0, schema::kDTypes.size() - 1)];
        model.emplace(fqn,
                      TestTensor(info.dtype, shape, static_cast<uint8_t>(random.Between(0, 255))));
      } else if (random.Chance(0.3)) {
        model.erase(found);
      } else if (!found->second.bytes.empty()) {
        auto& bytes = found->second.bytes;
        bytes[random.Between(0, bytes.size() - 1)] ^= std::byte{1};
      }
    }
    return model;
  }

  void Check(const std::map<uint64_t, Model>& steps) {
    const auto infos = store->Steps();
    ASSERT_TRUE(testing::IsOk(infos));
    ASSERT_EQ(infos->size(), steps.size());
    for (const auto& [step, model] : steps) {
      CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(step));
      ASSERT_EQ(contents.tensors.size(), model.size());
      std::vector<TestTensor> targets;
      std::vector<LoadRequest> requests;
      targets.reserve(model.size());
      for (const auto& [fqn, tensor] : model) {
        targets.emplace_back(tensor.dtype, tensor.shape, 251);
        requests.push_back(WholeRequest(fqn, targets.back()));
      }
      CAIRN_ASSERT_OK(store->Load(contents.step, requests));
      size_t i = 0;
      for (const auto& [fqn, tensor] : model) {
        ASSERT_EQ(targets[i++].bytes, tensor.bytes) << fqn << " of step " << step;
      }
    }
  }
};

TEST_F(RandomStateTest, EveryStepHoldsWhatWasSaved) {
  testing::SeededRandom random;
  std::map<uint64_t, Model> steps;
  Model model;
  for (int turn = 0; turn < 60; ++turn) {
    model = Mutate(std::move(model), random);
    const uint64_t step = random.Between(0, 8);
    if (random.Chance(0.2) && steps.contains(step)) {
      CAIRN_ASSERT_OK(store->Delete({&step, 1}));
      steps.erase(step);
    } else {
      StateDict state;
      for (const auto& [fqn, tensor] : model) state.root().Tensor(fqn, tensor.view());
      Save(step, state,
           {.overwrite = true, .chunk_bytes = random.Chance(0.5) ? 512 : kDefaultChunkBytes});
      steps[step] = model;
    }
    if (random.Chance(0.2)) Reopen();
    Check(steps);
    if (HasFatalFailure()) return;
  }
  EXPECT_TRUE(VerifyAll().empty());
}

}  // namespace
}  // namespace cairn::core
