// kv-bench plan: the save plan of one rank of a large job.

#include "tools/bench/plan.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/simulated_rank.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

/// The parameters of a model of dense layers on a mesh of replicas, FSDP shards and tensor
/// parallelism: 2,000 tensors with replicated norms, and matrices split along two of the three mesh
/// dimensions.
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
  // Addresses that nothing reads: a plan depends only on the addresses, not on the contents.
  static constexpr uintptr_t kAddressStep = uintptr_t{1} << 32;

  std::shared_ptr<const core::DeviceMesh> mesh_;  // shared by all tensors
  mutable uintptr_t next_address_ = kAddressStep;
};

}  // namespace

Result<void> BenchPlan(const BenchOptions& options, BenchReport& report) {
  CAIRN_TRY_ASSIGN(const PlannedModel model, PlannedModel::Make(options.ranks));
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    // Each run takes a different rank, so that the corners of the mesh are measured as well.
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

}  // namespace cairn::tools
