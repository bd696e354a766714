// Data-parallel training by several ranks that save together and resume on any number of ranks.
//
//   gloo_trainer STORE RANK RANKS RENDEZVOUS LAST_STEP
//
// The model is y = W x. Every rank works on its share of each batch; the gradients are added up;
// each rank keeps the momentum of some rows of W, updates these rows, and all exchange what they
// updated.

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
#include "core/gloo_communicator.h"

namespace core = cairn::core;
namespace kv = cairn::kv;

namespace {

constexpr uint64_t kOutputs = 25;  // does not divide by 2 or 4: the last ranks hold fewer rows
constexpr uint64_t kInputs = 16;
constexpr uint64_t kBatch = 32;  // of all ranks together
constexpr uint64_t kSaveEvery = 20;
constexpr double kLearningRate = 0.05;
constexpr double kMomentum = 0.9;

// A number in [-1, 1) that depends on its arguments only, so that any number of ranks sees the same
// data.
double Draw(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu + 1;
  for (int i = 0; i < 3; ++i) {
    x ^= x >> 31;
    x *= 0xd6e8feb86659fd93u;
  }
  return static_cast<double>(x >> 11) / static_cast<double>(uint64_t{1} << 52) - 1.0;
}

double TrueWeight(uint64_t row, uint64_t column) { return Draw(1, row, column); }

class Trainer {
 public:
  static cairn::Result<Trainer> Make(core::Communicator& communicator) {
    const auto ranks = static_cast<uint32_t>(communicator.world_size());
    CAIRN_TRY_ASSIGN(core::DeviceMesh mesh, core::DeviceMesh::Make({{"dp", ranks}}));
    Trainer trainer(communicator, std::make_shared<const core::DeviceMesh>(std::move(mesh)));
    CAIRN_TRY_ASSIGN(trainer.rows_, trainer.RowsOf(trainer.rank()));
    trainer.momentum_.resize(trainer.rows_.sizes[0] * kInputs);
    return trainer;
  }

  /// Fills weights and momentum from the latest step, if there is one.
  cairn::Result<void> Resume(const core::CheckpointStore& store) {
    CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, store.Steps());
    if (steps.empty()) return {};
    const core::ShardTarget targets[] = {
        {.fqn = "model.weight",
         .sharding = nullptr,
         .local = {.dtype = core::DType::kFloat64,
                   .shape = {kOutputs, kInputs},
                   .strides = {},
                   .data = std::as_writable_bytes(std::span(weights_)).data()}},
        {.fqn = "optimizer.momentum",
         .sharding = &momentum_sharding_,
         .local = {.dtype = core::DType::kFloat64,
                   .shape = rows_.sizes,
                   .strides = {},
                   .data = std::as_writable_bytes(std::span(momentum_)).data()}}};
    // The weights, which all ranks hold, are read by one of them and passed on.
    CAIRN_TRY(store.LoadShards(steps.back(), targets, {.read_once = true}));
    step_ = steps.back().step;
    return {};
  }

  /// What this rank holds; valid as long as the trainer.
  core::StateDict State() const {
    core::StateDict state;
    state.root().Map("model").Tensor("weight", {.dtype = core::DType::kFloat64,
                                                .shape = {kOutputs, kInputs},
                                                .strides = {},
                                                .data = std::as_bytes(std::span(weights_)).data()});
    auto optimizer = state.root().Map("optimizer");
    optimizer.Sharded("momentum",
                      {.dtype = core::DType::kFloat64,
                       .shape = rows_.sizes,
                       .strides = {},
                       .data = std::as_bytes(std::span(momentum_)).data()},
                      momentum_sharding_);
    optimizer.Value("learning_rate", kLearningRate);
    return state;
  }

  /// One step on one batch. Returns the loss before it.
  cairn::Result<double> Step() {
    ++step_;
    std::vector<double> own(kOutputs * kInputs + 1);  // the gradient, then the loss
    const uint64_t world = static_cast<uint64_t>(communicator_->world_size());
    for (uint64_t sample = rank(); sample < kBatch; sample += world) AddSample(sample, own);
    std::vector<std::vector<double>> all(world, std::vector<double>(own.size()));
    std::vector<core::ByteTarget> targets;
    for (auto& each : all) targets.push_back(std::as_writable_bytes(std::span(each)));
    CAIRN_TRY(communicator_->AllGather(std::as_bytes(std::span(own)), targets));
    std::fill(own.begin(), own.end(), 0.0);
    for (const auto& each : all) {
      for (size_t i = 0; i < own.size(); ++i) own[i] += each[i];
    }
    UpdateOwnRows(own);
    CAIRN_TRY(ShareRows());
    return own.back() / kBatch;
  }

  uint64_t step() const { return step_; }
  uint32_t rank() const { return static_cast<uint32_t>(communicator_->rank()); }

 private:
  Trainer(core::Communicator& communicator, std::shared_ptr<const core::DeviceMesh> mesh)
      : communicator_(&communicator), weights_(kOutputs * kInputs) {
    momentum_sharding_ = {.global_shape = {kOutputs, kInputs},
                          .mesh = std::move(mesh),
                          .placements = {core::Placement::Shard(0)},
                          .parts = {}};
  }

  cairn::Result<core::Box> RowsOf(uint32_t rank) const {
    return core::LocalBox(momentum_sharding_.global_shape, *momentum_sharding_.mesh,
                          momentum_sharding_.placements, rank);
  }

  void AddSample(uint64_t sample, std::vector<double>& sum) const {
    double x[kInputs];
    for (uint64_t i = 0; i < kInputs; ++i) x[i] = Draw(step_ + 100, sample, i);
    for (uint64_t row = 0; row < kOutputs; ++row) {
      double error = 0;
      for (uint64_t i = 0; i < kInputs; ++i) {
        error += (weights_[row * kInputs + i] - TrueWeight(row, i)) * x[i];
      }
      for (uint64_t i = 0; i < kInputs; ++i) sum[row * kInputs + i] += error * x[i] / kBatch;
      sum.back() += error * error;
    }
  }

  void UpdateOwnRows(const std::vector<double>& gradient) {
    const uint64_t first = rows_.offsets[0] * kInputs;
    for (size_t i = 0; i < momentum_.size(); ++i) {
      momentum_[i] = kMomentum * momentum_[i] + gradient[first + i];
      weights_[first + i] -= kLearningRate * momentum_[i];
    }
  }

  cairn::Result<void> ShareRows() {
    std::vector<core::ByteTarget> targets;
    for (int other = 0; other < communicator_->world_size(); ++other) {
      CAIRN_TRY_ASSIGN(const core::Box rows, RowsOf(static_cast<uint32_t>(other)));
      targets.push_back(std::as_writable_bytes(
          std::span(weights_).subspan(rows.offsets[0] * kInputs, rows.sizes[0] * kInputs)));
    }
    // Sent from a copy: what a call sends and what it receives may not overlap.
    const core::ByteTarget own = targets[rank()];
    const std::vector<std::byte> sent(own.begin(), own.end());
    return communicator_->AllGather(sent, targets);
  }

  core::Communicator* communicator_;
  core::Sharding momentum_sharding_;
  core::Box rows_;                // of this rank
  std::vector<double> weights_;   // all of them
  std::vector<double> momentum_;  // of rows_
  uint64_t step_ = 0;
};

cairn::Result<void> Train(char** words) {
  CAIRN_TRY_ASSIGN(const auto communicator, core::ConnectGloo({.rank = std::stoi(words[2]),
                                                               .world_size = std::stoi(words[3]),
                                                               .rendezvous = words[4],
                                                               .interface = "127.0.0.1"}));
  CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::OpenShared(
                                         words[1], kv::OpenMode::kWrite, *communicator));
  CAIRN_TRY_ASSIGN(Trainer trainer, Trainer::Make(*communicator));
  CAIRN_TRY(trainer.Resume(*store));
  if (trainer.rank() == 0) {
    std::printf("from step %llu on %d ranks\n", static_cast<unsigned long long>(trainer.step()),
                communicator->world_size());
  }
  const uint64_t last_step = std::stoull(words[5]);
  std::vector<core::SaveHandle> saves;
  {
    core::AsyncSaver saver(store.get());
    while (trainer.step() < last_step) {
      CAIRN_TRY_ASSIGN(const double loss, trainer.Step());
      if (trainer.step() % kSaveEvery != 0 && trainer.step() != last_step) continue;
      if (trainer.rank() == 0) {
        std::printf("step %llu loss %.12e\n", static_cast<unsigned long long>(trainer.step()),
                    loss);
      }
      CAIRN_TRY_ASSIGN(core::SaveHandle save, saver.Save(trainer.step(), trainer.State()));
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
