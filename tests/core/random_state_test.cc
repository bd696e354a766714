// Random operations on a store (save, overwrite, delete, reopen), compared with a model of it in
// memory: after each operation every step must contain exactly what was saved.

#include <fmt/format.h>

#include <functional>
#include <map>

#include "core/load/load_options.h"
#include "core/step/contents.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core {
namespace {

class RandomStateTest : public StoreTest {
 protected:
  using Model = std::map<std::string, TestTensor>;  // the contents of one step

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

  // Tensors of many pages, of which some change.
  Model MutatePages(Model model, testing::SeededRandom& random) {
    if (model.empty()) {
      for (const uint64_t pages : {1, 5, 16, 40}) {
        const uint64_t bytes = pages * kv::kPageBytes + random.Between(0, 5000);
        model.emplace(fmt::format("p{}.w", pages), TestTensor(DType::kUInt8, {bytes}));
      }
    }
    for (auto& [fqn, tensor] : model) {
      const uint64_t most = random.Chance(0.1) ? 40 : 3;
      for (uint64_t count = random.Between(0, most); count > 0; --count) {
        tensor.bytes[random.Between(0, tensor.bytes.size() - 1)] ^= std::byte{1};
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
        ASSERT_TRUE(targets[i++].bytes == tensor.bytes) << fqn << " of step " << step;
      }
    }
  }

  // Each round saves with one of the options or deletes a step, and sometimes reopens the store.
  void Live(int turns, const std::function<Model(Model)>& mutate,
            const std::vector<SaveOptions>& options, testing::SeededRandom& random) {
    std::map<uint64_t, Model> steps;
    Model model;
    for (int turn = 0; turn < turns; ++turn) {
      model = mutate(std::move(model));
      const uint64_t step = random.Between(0, 8);
      if (random.Chance(0.2) && steps.contains(step)) {
        CAIRN_ASSERT_OK(store->Delete({&step, 1}));
        steps.erase(step);
      } else {
        StateDict state;
        for (const auto& [fqn, tensor] : model) state.root().Tensor(fqn, tensor.view());
        SaveOptions chosen = options[random.Between(0, options.size() - 1)];
        chosen.overwrite = true;
        Save(step, state, chosen);
        steps[step] = model;
      }
      if (random.Chance(0.2)) Reopen();
      Check(steps);
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(VerifyAll().empty());
  }
};

TEST_F(RandomStateTest, EveryStepHoldsWhatWasSaved) {
  testing::SeededRandom random;
  Live(
      60, [&](Model model) { return Mutate(std::move(model), random); }, {{.chunk_bytes = 512}, {}},
      random);
}

TEST_F(RandomStateTest, EveryStepHoldsWhatWasSavedWhereFewPagesChange) {
  testing::SeededRandom random;
  Live(
      60, [&](Model model) { return MutatePages(std::move(model), random); },
      {{}, {}, {.chunk_bytes = 8 * kv::kPageBytes}}, random);
}

TEST_F(RandomStateTest, EveryStepHoldsWhatWasSavedWithDeltas) {
  testing::SeededRandom random;
  Live(
      60, [&](Model model) { return MutatePages(std::move(model), random); },
      {{.max_deltas = 4},
       {.max_deltas = 4},
       {.max_deltas = 2, .chunk_bytes = 8 * kv::kPageBytes},
       {}},
      random);
}

}  // namespace
}  // namespace cairn::core
