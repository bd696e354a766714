// Data-parallel and tensor-parallel training: ranks save together, and any number of ranks resumes.
//
//   gloo_trainer STORE RANK RANKS RENDEZVOUS LAST_STEP
//
// The model is y = W2 tanh(W1 x) + b. Ranks form a mesh (dp, tp). The hidden units are divided
// along tp: each rank holds some rows of W1, the same columns of W2, and their momentum; the
// partial outputs are summed. The batch is divided along dp, and the gradients are summed.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "core/ranks/gather_v.h"
#include "core/ranks/gloo_communicator.h"

namespace core = cairn::core;
namespace kv = cairn::kv;

namespace {

constexpr uint64_t kInputs = 16;
constexpr uint64_t kHidden = 25;  // not divisible by 2: the last rank along tp holds fewer
constexpr uint64_t kOutputs = 10;
constexpr uint64_t kBatch = 32;  // on all ranks together
constexpr uint64_t kSaveEvery = 20;
constexpr double kLearningRate = 0.1;
constexpr double kMomentum = 0.9;

// Returns a number in [-1, 1) that depends only on the arguments, so that any number of ranks uses
// the same data and the same initial weights.
double Draw(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu + 1;
  for (int i = 0; i < 3; ++i) {
    x ^= x >> 31;
    x *= 0xd6e8feb86659fd93u;
  }
  return static_cast<double>(x >> 11) / static_cast<double>(uint64_t{1} << 52) - 1.0;
}

// Sums `numbers` over all ranks of the group.
cairn::Result<void> AllReduce(core::Communicator& group, std::vector<double>& numbers) {
  std::vector<std::vector<double>> all(static_cast<size_t>(group.world_size()),
                                       std::vector<double>(numbers.size()));
  std::vector<core::ByteTarget> targets;
  for (auto& each : all) targets.push_back(std::as_writable_bytes(std::span(each)));
  CAIRN_TRY(group.AllGather(std::as_bytes(std::span(numbers)), targets));
  std::fill(numbers.begin(), numbers.end(), 0.0);
  for (const auto& each : all) {
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] += each[i];
  }
  return {};
}

// A matrix and its momentum, of which this rank holds a part.
struct Matrix {
  core::Sharding sharding;
  core::Box box;  // the part of this rank
  std::vector<double> weights;
  std::vector<double> momentum;

  core::TensorView View(const std::vector<double>& numbers) const {
    return {.dtype = core::DType::kFloat64,
            .shape = box.sizes,
            .strides = {},
            .data = std::as_bytes(std::span(numbers)).data()};
  }
  core::ShardTarget Target(const std::string& fqn, std::vector<double>& numbers) {
    return {.fqn = fqn,
            .sharding = &sharding,
            .local = {.dtype = core::DType::kFloat64,
                      .shape = box.sizes,
                      .strides = {},
                      .data = std::as_writable_bytes(std::span(numbers)).data()}};
  }
  void Update(std::span<const double> gradient) {
    for (size_t i = 0; i < weights.size(); ++i) {
      momentum[i] = kMomentum * momentum[i] + gradient[i];
      weights[i] -= kLearningRate * momentum[i];
    }
  }
};

class Trainer {
 public:
  static cairn::Result<std::unique_ptr<Trainer>> Make(core::Communicator& communicator) {
    std::unique_ptr<Trainer> trainer(new Trainer());
    const auto ranks = static_cast<uint32_t>(communicator.world_size());
    trainer->rank_ = static_cast<uint32_t>(communicator.rank());
    const uint32_t tp = ranks % 2 == 0 ? 2 : 1;
    CAIRN_TRY_ASSIGN(core::DeviceMesh mesh,
                     core::DeviceMesh::Make({{"dp", ranks / tp}, {"tp", tp}}));
    trainer->mesh_ = std::make_shared<const core::DeviceMesh>(std::move(mesh));
    const size_t along_dp[] = {0};
    const size_t along_tp[] = {1};
    CAIRN_TRY_ASSIGN(trainer->dp_, core::SplitAlong(communicator, *trainer->mesh_, along_dp));
    CAIRN_TRY_ASSIGN(trainer->tp_, core::SplitAlong(communicator, *trainer->mesh_, along_tp));
    CAIRN_TRY(trainer->Begin(trainer->w1_, {kHidden, kInputs}, 0));
    CAIRN_TRY(trainer->Begin(trainer->w2_, {kOutputs, kHidden}, 1));
    return trainer;
  }

  /// Loads the latest step, if there is one.
  cairn::Result<void> Resume(const core::CheckpointStore& store) {
    CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, store.Steps());
    if (steps.empty()) return {};
    const core::ShardTarget targets[] = {
        w1_.Target("model.w1", w1_.weights),
        w1_.Target("optimizer.w1", w1_.momentum),
        w2_.Target("model.w2", w2_.weights),
        w2_.Target("optimizer.w2", w2_.momentum),
        {.fqn = "model.b",
         .sharding = nullptr,
         .local = {.dtype = core::DType::kFloat64,
                   .shape = {kOutputs},
                   .strides = {},
                   .data = std::as_writable_bytes(std::span(bias_)).data()}}};
    // Bytes that several ranks need are read by one of them and sent to the others.
    CAIRN_TRY(store.LoadShards(steps.back(), targets, {.read_once = true}));
    step_ = steps.back().step;
    return {};
  }

  /// Returns the tensors of this rank, as views that are valid while the trainer exists.
  core::StateDict State() const {
    core::StateDict state;
    auto model = state.root().Map("model");
    model.Sharded("w1", w1_.View(w1_.weights), w1_.sharding);
    model.Sharded("w2", w2_.View(w2_.weights), w2_.sharding);
    model.Tensor("b", {.dtype = core::DType::kFloat64,
                       .shape = {kOutputs},
                       .strides = {},
                       .data = std::as_bytes(std::span(bias_)).data()});
    auto optimizer = state.root().Map("optimizer");
    optimizer.Sharded("w1", w1_.View(w1_.momentum), w1_.sharding);
    optimizer.Sharded("w2", w2_.View(w2_.momentum), w2_.sharding);
    optimizer.Value("learning_rate", kLearningRate);
    return state;
  }

  /// Trains on one batch. Returns the loss before the update.
  cairn::Result<double> Step() {
    ++step_;
    const auto share = static_cast<uint64_t>(dp_->world_size());
    const uint64_t hidden = w1_.box.sizes[0];
    std::vector<double> sum(w1_.weights.size() + w2_.weights.size() + kOutputs + 1);
    const std::span<double> of_w1 = std::span(sum).first(w1_.weights.size());
    const std::span<double> of_w2 = std::span(sum).subspan(of_w1.size(), w2_.weights.size());
    const std::span<double> of_bias = std::span(sum).subspan(of_w1.size() + of_w2.size(), kOutputs);
    for (auto sample = static_cast<uint64_t>(dp_->rank()); sample < kBatch; sample += share) {
      double x[kInputs];
      for (uint64_t i = 0; i < kInputs; ++i) x[i] = Draw(step_ + 100, sample, i);
      std::vector<double> h(hidden);
      for (uint64_t j = 0; j < hidden; ++j) {
        double z = 0;
        for (uint64_t i = 0; i < kInputs; ++i) z += w1_.weights[j * kInputs + i] * x[i];
        h[j] = std::tanh(z);
      }
      std::vector<double> error(kOutputs);  // partial outputs of this rank's hidden units
      for (uint64_t k = 0; k < kOutputs; ++k) {
        for (uint64_t j = 0; j < hidden; ++j) error[k] += w2_.weights[k * hidden + j] * h[j];
      }
      CAIRN_TRY(AllReduce(*tp_, error));
      for (uint64_t k = 0; k < kOutputs; ++k) {
        double wanted = 0;
        for (uint64_t i = 0; i < kInputs; ++i) wanted += 0.2 * Draw(1, k, i) * x[i];
        error[k] += bias_[k] - wanted;
        sum.back() += error[k] * error[k] / kBatch;
        of_bias[k] += error[k] / kBatch;
        for (uint64_t j = 0; j < hidden; ++j) of_w2[k * hidden + j] += error[k] * h[j] / kBatch;
      }
      for (uint64_t j = 0; j < hidden; ++j) {
        double back = 0;
        for (uint64_t k = 0; k < kOutputs; ++k) back += w2_.weights[k * hidden + j] * error[k];
        back *= (1 - h[j] * h[j]) / kBatch;
        for (uint64_t i = 0; i < kInputs; ++i) of_w1[j * kInputs + i] += back * x[i];
      }
    }
    CAIRN_TRY(AllReduce(*dp_, sum));
    w1_.Update(of_w1);
    w2_.Update(of_w2);
    for (uint64_t k = 0; k < kOutputs; ++k) bias_[k] -= kLearningRate * of_bias[k];
    return sum.back();
  }

  uint64_t step() const { return step_; }
  uint32_t rank() const { return rank_; }
  const core::DeviceMesh& mesh() const { return *mesh_; }

 private:
  Trainer() : bias_(kOutputs) {}

  // Creates this rank's part of a matrix that is divided along tp in dimension `dim`.
  cairn::Result<void> Begin(Matrix& matrix, core::Shape shape, uint32_t dim) {
    matrix.sharding = {.global_shape = shape,
                       .mesh = mesh_,
                       .placements = {core::Placement::Replicate(), core::Placement::Shard(dim)},
                       .parts = {}};
    CAIRN_TRY_ASSIGN(const core::LocalShard shard,
                     core::ShardOf(shape, *mesh_, matrix.sharding.placements, rank_));
    matrix.box = shard.Boxes().front().box;  // every rank has a part, which is one box
    for (uint64_t row = 0; row < matrix.box.sizes[0]; ++row) {
      for (uint64_t column = 0; column < matrix.box.sizes[1]; ++column) {
        matrix.weights.push_back(
            0.3 * Draw(2 + dim, matrix.box.offsets[0] + row, matrix.box.offsets[1] + column));
      }
    }
    matrix.momentum.resize(matrix.weights.size());
    return {};
  }

  uint32_t rank_ = 0;
  std::shared_ptr<const core::DeviceMesh> mesh_;  // shared with all matrices
  std::unique_ptr<core::Communicator> dp_;
  std::unique_ptr<core::Communicator> tp_;
  Matrix w1_;
  Matrix w2_;
  std::vector<double> bias_;  // the same on all ranks
  uint64_t step_ = 0;
};

cairn::Result<void> Train(char** words) {
  CAIRN_TRY_ASSIGN(const auto communicator, core::ConnectGloo({.rank = std::stoi(words[2]),
                                                               .world_size = std::stoi(words[3]),
                                                               .rendezvous = words[4],
                                                               .interface = "127.0.0.1"}));
  CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::OpenShared(
                                         words[1], kv::OpenMode::kWrite, *communicator));
  CAIRN_TRY_ASSIGN(const std::unique_ptr<Trainer> trainer, Trainer::Make(*communicator));
  CAIRN_TRY(trainer->Resume(*store));
  if (trainer->rank() == 0) {
    std::printf("from step %llu on %d ranks: dp %u, tp %u\n",
                static_cast<unsigned long long>(trainer->step()), communicator->world_size(),
                trainer->mesh().dims()[0].size, trainer->mesh().dims()[1].size);
  }
  const uint64_t last_step = std::stoull(words[5]);
  std::vector<core::SaveHandle> saves;
  {
    core::AsyncSaver saver(store.get());
    while (trainer->step() < last_step) {
      CAIRN_TRY_ASSIGN(const double loss, trainer->Step());
      if (trainer->step() % kSaveEvery != 0 && trainer->step() != last_step) continue;
      if (trainer->rank() == 0) {
        std::printf("step %llu loss %.12e\n", static_cast<unsigned long long>(trainer->step()),
                    loss);
      }
      CAIRN_TRY_ASSIGN(core::SaveHandle save, saver.Save(trainer->step(), trainer->State()));
      saves.push_back(std::move(save));
    }
  }
  for (const core::SaveHandle& save : saves) CAIRN_TRY(save.Wait());
  return store->Close();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: gloo_trainer STORE RANK RANKS RENDEZVOUS LAST_STEP\n");
    return 2;
  }
  if (const auto done = Train(argv); !done) {
    std::fprintf(stderr, "rank %s: %s\n", argv[2], done.error().ToString().c_str());
    return 1;
  }
  return 0;
}
