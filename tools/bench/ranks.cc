// kv-bench commit and plan: what a job of many ranks costs its rank 0, and each rank.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/simulated_rank.h"
#include "tools/bench/verbs.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"

namespace cairn::tools::internal {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kWriters = 8;        // threads that write the parts: they mostly wait for syncs
constexpr uint64_t kRowElements = 8;  // of a tensor: one row a rank, a chunk each

/// Rank 0 of a job whose other ranks are simulated: they agree with everything.
class SimulatedJob : public core::Communicator {
 public:
  explicit SimulatedJob(uint64_t ranks) : ranks_(static_cast<int>(ranks)) {}
  int rank() const override { return 0; }
  int world_size() const override { return ranks_; }
  std::chrono::milliseconds timeout() const override { return std::chrono::seconds(60); }
  Result<void> Barrier() override { return {}; }
  Result<void> Broadcast(core::ByteTarget, int) override { return {}; }
  Result<void> Gather(core::ByteView mine, std::span<const core::ByteTarget> all, int) override {
    return AllGather(mine, all);
  }
  Result<void> AllGather(core::ByteView mine, std::span<const core::ByteTarget> all) override {
    for (const core::ByteTarget target : all) std::ranges::copy(mine, target.begin());
    return {};
  }
  Result<void> Scatter(std::span<const core::ByteView>, core::ByteTarget, int) override {
    return Unsupported();
  }
  Result<void> AllToAll(std::span<const core::ByteView>,
                        std::span<const core::ByteTarget>) override {
    return Unsupported();
  }
  Result<std::unique_ptr<core::Communicator>> Split(uint32_t, uint32_t) override {
    return Fail(Unsupported().error());
  }

 private:
  static Result<void> Unsupported() {
    return Fail(ErrorCode::kUnimplemented, "simulated ranks do not answer");
  }
  const int ranks_;
};

/// Tensors of one row a rank, as many as make up the chunks.
class SimulatedState {
 public:
  static Result<SimulatedState> Make(uint64_t ranks, uint64_t chunks) {
    CAIRN_TRY_ASSIGN(core::DeviceMesh mesh,
                     core::DeviceMesh::Make({{"ranks", static_cast<uint32_t>(ranks)}}));
    SimulatedState state;
    state.mesh_ = std::make_shared<const core::DeviceMesh>(std::move(mesh));
    for (uint64_t left = chunks; left > 0;) {
      state.rows_.push_back(std::min(left, ranks));
      left -= state.rows_.back();
    }
    state.memory_.resize(kRowElements);
    return state;
  }

  core::StateDict Of(uint32_t rank) const {
    core::StateDict state;
    auto model = state.root().Map("model");
    for (size_t i = 0; i < rows_.size(); ++i) {
      const uint64_t own = rank < rows_[i] ? 1 : 0;
      model.Sharded(fmt::format("layers.{:06}.weight", i),
                    {.dtype = core::DType::kUInt8,
                     .shape = {own, kRowElements},
                     .strides = {},
                     .data = memory_.data()},
                    {.global_shape = {rows_[i], kRowElements},
                     .mesh = nullptr,
                     .placements = {},
                     .parts = OwnRow(rank, own)});
    }
    return state;
  }

 private:
  std::vector<core::Sharding::Part> OwnRow(uint32_t rank, uint64_t own) const {
    if (own == 0) return {};
    return {{.box = {{rank, 0}, {1, kRowElements}},
             .view = {.dtype = core::DType::kUInt8,
                      .shape = {1, kRowElements},
                      .strides = {},
                      .data = memory_.data()}}};
  }

  std::shared_ptr<const core::DeviceMesh> mesh_;  // by all tensors
  std::vector<uint64_t> rows_;                    // of each tensor
  std::vector<std::byte> memory_;
};

/// A directory for one run, removed at its end.
class RunDirectory {
 public:
  explicit RunDirectory(const std::string& parent)
      : path_((fs::path(parent) / fmt::format("commit-{}", ::getpid())).string()) {}
  ~RunDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Segments and manifests of ranks 1 and up, each durable.
Result<void> WriteParts(const core::CheckpointStore& store, uint64_t ranks,
                        const SimulatedState& state, const core::SaveOptions& options) {
  ProgressLine progress("writing the ranks' parts");
  std::atomic<uint32_t> next = 1;
  std::mutex mutex;
  std::optional<Error> failure;  // guarded by mutex
  const auto write = [&]() -> Result<void> {
    kv::StoreOptions join;
    CAIRN_TRY_ASSIGN(join.session, store.kv().OpenSession());
    CAIRN_TRY_ASSIGN(const auto joined,
                     kv::Store::Open(store.kv().directory(), kv::OpenMode::kJoinSession, join));
    const std::string attempt = joined->NextAttempt(1);
    for (uint32_t rank = next++; rank < ranks; rank = next++) {
      CAIRN_TRY(core::PrepareRank(*joined, 1, attempt, state.Of(rank), options, rank,
                                 static_cast<uint32_t>(ranks)));
      const std::lock_guard lock(mutex);
      if (!progress.callback()(rank, ranks)) return Fail(ErrorCode::kCancelled, "cancelled");
      if (failure) return {};
    }
    return {};
  };
  {
    std::vector<std::jthread> writers;
    for (size_t i = 0; i < kWriters; ++i) {
      writers.emplace_back([&] {
        if (Result<void> written = write(); !written) {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::move(written).error();
        }
      });
    }
  }
  if (failure) return Fail(*failure);
  return {};
}

Result<BenchRow> CommitOnce(const BenchOptions& options, uint64_t run) {
  const RunDirectory directory(options.directory);
  SimulatedJob job(options.ranks);
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::OpenShared(directory.path(), kv::OpenMode::kWrite, job));
  CAIRN_TRY_ASSIGN(const SimulatedState state, SimulatedState::Make(options.ranks, options.chunks));
  const core::SaveOptions save{.incremental = false};
  const auto begin = Clock::now();
  CAIRN_TRY(WriteParts(*store, options.ranks, state, save));
  const double parts_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const core::StateDict own = state.Of(0);
  const Meter meter;
  CAIRN_TRY(store->Save(1, own, save));
  BenchRow row{.verb = "commit", .what = "commit", .run = run};
  row.measured = meter.Stop();
  row.rate_matters = false;
  CAIRN_TRY_ASSIGN(const auto steps, store->Steps());
  if (steps.size() != 1 || steps.front().chunk_count != options.chunks) {
    return Fail(ErrorCode::kInternal, "the committed step has not the chunks that were written");
  }
  row.bytes = steps.front().logical_bytes;
  row.extra = {
      {"ranks", options.ranks}, {"chunks", options.chunks}, {"parts_seconds", parts_seconds}};
  row.note =
      fmt::format("{} manifests, {} chunks (writing them before: {})", GroupedCount(options.ranks),
                  GroupedCount(options.chunks), HumanSeconds(parts_seconds));
  CAIRN_TRY(store->Close());
  return row;
}

/// The parameters of a mixture of dense layers on (replicas, FSDP shards, tensor parallel): 2,000
/// tensors, norms replicated, matrices cut along two of three mesh dimensions.
class PlannedModel {
 public:
  static Result<PlannedModel> Make(uint64_t ranks) {
    std::vector<uint32_t> sizes = {1, 1, 1};
    uint64_t left = ranks;
    for (size_t d = 0; left > 1; d = (d + 1) % 3) {
      uint64_t factor = 2;
      while (left % factor != 0) ++factor;
      sizes[d] *= static_cast<uint32_t>(factor);
      left /= factor;
    }
    PlannedModel model;
    CAIRN_TRY_ASSIGN(
        core::DeviceMesh mesh,
        core::DeviceMesh::Make({{"replica", sizes[0]}, {"fsdp", sizes[1]}, {"tp", sizes[2]}}));
    model.mesh_ = std::make_shared<const core::DeviceMesh>(std::move(mesh));
    return model;
  }

  const core::DeviceMesh& mesh() const { return *mesh_; }

  Result<core::StateDict> Of(uint32_t rank) const {
    using core::Placement;
    core::StateDict state;
    auto model = state.root().Map("model");
    const std::vector<Placement> rows = {Placement::Replicate(), Placement::Shard(0),
                                         Placement::Shard(0)};
    const std::vector<Placement> columns = {Placement::Replicate(), Placement::Shard(0),
                                            Placement::Shard(1)};
    const std::vector<Placement> norm = {Placement::Replicate(), Placement::Shard(0),
                                         Placement::Replicate()};
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto add = [&](const char* name, core::Shape shape,
                           const std::vector<Placement>& placements) -> Result<void> {
        CAIRN_TRY_ASSIGN(const core::Box local, core::LocalBox(shape, *mesh_, placements, rank));
        model.Sharded(fmt::format("layers.{}.{}", layer, name),
                      {.dtype = core::DType::kBFloat16,
                       .shape = local.sizes,
                       .strides = {},
                       .data = reinterpret_cast<const std::byte*>(next_address_)},
                      {.global_shape = std::move(shape),
                       .mesh = mesh_,
                       .placements = placements,
                       .parts = {}});
        next_address_ += kAddressStep;
        return {};
      };
      CAIRN_TRY(add("attention_norm.weight", {kWidth}, norm));
      CAIRN_TRY(add("ffn_norm.weight", {kWidth}, norm));
      for (const char* name :
           {"attention.wq.weight", "attention.wk.weight", "attention.wv.weight"}) {
        CAIRN_TRY(add(name, {kWidth, kWidth}, rows));
      }
      CAIRN_TRY(add("attention.wo.weight", {kWidth, kWidth}, columns));
      for (const char* name : {"ffn.w1.weight", "ffn.w3.weight"}) {
        CAIRN_TRY(add(name, {kWide, kWidth}, rows));
      }
      CAIRN_TRY(add("ffn.w2.weight", {kWidth, kWide}, columns));
      CAIRN_TRY(add("ffn.gate.bias", {kWide}, norm));
    }
    return state;
  }

 private:
  static constexpr int kLayers = 200;
  static constexpr uint64_t kWidth = 12'288;
  static constexpr uint64_t kWide = 32'768;
  // Addresses that nothing reads: a plan looks only at where tensors lie.
  static constexpr uintptr_t kAddressStep = uintptr_t{1} << 32;

  std::shared_ptr<const core::DeviceMesh> mesh_;  // by all tensors
  mutable uintptr_t next_address_ = kAddressStep;
};

}  // namespace

Result<void> BenchCommit(const BenchOptions& options, BenchReport& report) {
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    CAIRN_TRY_ASSIGN(const BenchRow row, CommitOnce(options, run));
    report.Add(row);
  }
  return {};
}

Result<void> BenchPlan(const BenchOptions& options, BenchReport& report) {
  CAIRN_TRY_ASSIGN(const PlannedModel model, PlannedModel::Make(options.ranks));
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    // Other ranks in other runs, so that corners of the mesh are seen too.
    const auto rank = static_cast<uint32_t>((run - 1) * 7919 % options.ranks);
    CAIRN_TRY_ASSIGN(const core::StateDict state, model.Of(rank));
    const Meter meter;
    CAIRN_TRY_ASSIGN(const core::RankShare share,
                     core::PlanRank(state, {}, rank, static_cast<uint32_t>(options.ranks)));
    BenchRow row{.verb = "plan", .what = "plan", .run = run};
    row.measured = meter.Stop();
    row.rate_matters = false;
    row.bytes = share.bytes;
    const auto& dims = model.mesh().dims();
    row.extra = {{"ranks", options.ranks},
                 {"rank", rank},
                 {"tensors", state.tensors.size()},
                 {"tensors_written", share.tensors},
                 {"chunks", share.chunks}};
    row.note = fmt::format("rank {} of a {} x {} x {} mesh: {} of {} tensors, {} chunks", rank,
                           dims[0].size, dims[1].size, dims[2].size, GroupedCount(share.tensors),
                           GroupedCount(state.tensors.size()), GroupedCount(share.chunks));
    report.Add(row);
  }
  return {};
}

}  // namespace cairn::tools::internal
