// How boxes are read once and sent to all ranks that need them:
//
// 1. The boxes that the same ranks need (a ReplicaGroup) are divided along the stored chunks, which
//    all of these ranks find in the step, into one share of equal bytes per rank.
// 2. Each rank reads its share into its own targets. The ranks then agree on the status: if one has
//    failed, all fail.
// 3. In rounds of bounded size, each rank sends the next part of its share to the other ranks of
//    the group, as row-major bytes in the order of the items. The receivers know from the plan what
//    they get.

#include "core/load/internal/shard_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "core/base/internal/catch_bad_alloc.h"
#include "core/load/internal/load.h"
#include "core/ranks/communicator.h"
#include "core/ranks/internal/all_gather_values.h"
#include "core/ranks/internal/round_mover.h"
#include "core/ranks/status_agreement.h"
#include "core/sharding/internal/replica_group.h"
#include "core/state_dict/internal/state_devices.h"
#include "core/step/internal/owners.h"
#include "core/tensor/internal/tensor_stream.h"
#include "kv/digest.h"

namespace cairn::core::internal {
namespace {

TensorView AsView(const TensorTarget& target) {
  return {target.dtype, target.shape, target.strides, target.data, target.device};
}

// Requires a view of writable memory: one from AsView, or of a Sharding that is a load's target.
TensorTarget AsTarget(const TensorView& view) {
  return {view.dtype, view.shape, view.strides, const_cast<std::byte*>(view.data), view.device};
}

Result<std::vector<ShardView>> ShardViewsToFill(const ShardTarget& target, const TensorInfo& stored,
                                                uint32_t rank) {
  if (target.sharding == nullptr) {
    if (target.local.shape != stored.shape) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("the target has shape {}, the stored tensor {}",
                              FormatNumbers(target.local.shape), FormatNumbers(stored.shape)));
    }
    if (const auto checked = CheckStrides(target.local.shape, target.local.strides); !checked) {
      return Fail(ErrorCode::kInvalidArgument, "the target has " + checked.error().message);
    }
    return std::vector<ShardView>{
        {.box = WholeBox(target.local.shape), .view = AsView(target.local)}};
  }
  if (target.sharding->global_shape != stored.shape) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the target's global shape is {}, the stored one {}",
                    FormatNumbers(target.sharding->global_shape), FormatNumbers(stored.shape)));
  }
  // A rank that is not on the mesh holds nothing of the tensor.
  if (target.sharding->mesh != nullptr && !target.sharding->mesh->CoordinateOf(rank)) {
    return std::vector<ShardView>{};
  }
  return ShardViewsOf(*target.sharding, AsView(target.local), rank);
}

// One target, its stored record, and the boxes of it that this rank holds.
struct Filling {
  const ShardTarget* target = nullptr;
  const TensorInfo* stored = nullptr;
  std::vector<ShardView> pieces;
};

struct Fillings {
  std::vector<TensorInfo> stored;  // key order
  std::vector<Filling> all;        // in the order of the targets

  static Result<Fillings> Make(const StepView& view, std::span<const ShardTarget> targets,
                               uint32_t rank) {
    Fillings fillings;
    std::vector<std::string> fqns;
    for (const ShardTarget& target : targets) fqns.push_back(target.fqn);
    CAIRN_TRY_ASSIGN(fillings.stored, FindNamed(view, std::move(fqns)));
    for (const ShardTarget& target : targets) {
      Filling filling{
          .target = &target, .stored = &ByName(fillings.stored, target.fqn), .pieces = {}};
      auto pieces = ShardViewsToFill(target, *filling.stored, rank);
      if (!pieces) return Fail(std::move(pieces).error().WithKey(target.fqn));
      filling.pieces = *std::move(pieces);
      fillings.all.push_back(std::move(filling));
    }
    return fillings;
  }
};

// A box that all ranks of a group need and one of them reads.
struct Item {
  const std::string* fqn = nullptr;
  Box box;
  TensorTarget target;  // of the box
  uint64_t bytes = 0;
};

// The part of a shard's memory that holds `box`, which is inside the shard's box.
TensorTarget TargetOf(const ShardView& shard, Box box) {
  for (size_t d = 0; d < box.offsets.size(); ++d) box.offsets[d] -= shard.box.offsets[d];
  return Narrow(AsTarget(shard.view), box);
}

// What the ranks of one group read and send to each other.
class GroupLoad {
 public:
  explicit GroupLoad(const ReplicaGroup& group, uint32_t rank) : place_(group.MembershipOf(rank)) {}

  const ReplicaGroup::Membership& place() const { return place_; }
  void Add(Item item) { items_.push_back(std::move(item)); }

  /// Divides the items into one share per rank. Call after the last Add.
  void Divide() {
    uint64_t total = 0;
    for (const Item& item : items_) total += item.bytes;
    begins_.assign(1, 0);
    uint64_t before = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      const uint64_t share = ShareOf(before + items_[i].bytes / 2, total, place_.size);
      while (begins_.size() <= share) begins_.push_back(i);
      before += items_[i].bytes;
    }
    while (begins_.size() <= place_.size) begins_.push_back(items_.size());
  }

  void AddOwnRequests(std::vector<LoadRequest>& requests) const {
    for (const Item& item : ShareOfMember(place_.index)) {
      requests.push_back({.fqn = *item.fqn, .box = item.box, .target = item.target});
    }
  }

  /// Checks that all ranks of the group have planned the same items. Collective over the group.
  /// kInvalidArgument: they have not.
  Result<void> CheckAgreed(Communicator& group, const kv::StepInfo& step) const {
    std::string plan = fmt::format("{} {} {}", step.step, step.generation, step.attempt);
    for (const Item& item : items_) {
      plan += fmt::format("|{} {} {} {}", *item.fqn, FormatNumbers(item.box.offsets),
                          FormatNumbers(item.box.sizes), item.bytes);
    }
    const kv::Digest own = kv::PayloadDigest(std::as_bytes(std::span(plan)));
    CAIRN_TRY_ASSIGN(const std::vector<kv::Digest> all, AllGatherValues(group, own));
    if (all.size() == place_.size && static_cast<uint64_t>(group.rank()) == place_.index &&
        std::ranges::count(all, own) == std::ssize(all)) {
      return {};
    }
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message =
                          "ranks that read for each other request different steps, keys, meshes "
                          "or placements; request the same, or load without read_once",
                      .key = items_.empty() ? std::string() : *items_.front().fqn});
  }

  void AddDevices(std::set<int>& devices) const {
    for (const Item& item : items_) {
      if (item.target.device != kHostDevice) devices.insert(item.target.device);
    }
  }

  /// Sends this rank's share to the group and receives the shares of the others. Collective over
  /// the group. Requires a mover with a buffer of at least max(buffer_bytes, one byte per rank).
  Result<void> Exchange(Communicator& group, RoundMover& mover, uint64_t buffer_bytes) const {
    const uint64_t round_bytes = std::max<uint64_t>(buffer_bytes / place_.size, 1);
    TensorStream<TensorView> mine;
    for (const Item& item : ShareOfMember(place_.index)) mine.Add(AsView(item.target));
    std::vector<TensorStream<TensorTarget>> shares(place_.size);
    uint64_t longest = 0;
    for (uint64_t member = 0; member < place_.size; ++member) {
      for (const Item& item : ShareOfMember(member)) shares[member].Add(item.target);
      longest = std::max(longest, shares[member].length_bytes());
    }
    for (uint64_t at = 0; at < longest; at += round_bytes) {
      const auto count_of = [&](uint64_t member) {
        const uint64_t length = shares[member].length_bytes();
        return std::min(length - std::min(at, length), round_bytes);
      };
      mover.Begin();
      CAIRN_TRY_ASSIGN(const ByteView own, mover.Source(mine, at, count_of(place_.index)));
      std::vector<ByteView> sent(place_.size, own);
      std::vector<ByteTarget> parts(place_.size);
      for (uint64_t member = 0; member < place_.size; ++member) {
        if (member != place_.index)
          parts[member] = mover.Target(shares[member], at, count_of(member));
      }
      sent[place_.index] = {};
      CAIRN_TRY(mover.Packed());
      CAIRN_TRY(group.AllToAll(sent, parts));
      CAIRN_TRY(mover.Unpack());
    }
    return {};
  }

 private:
  std::span<const Item> ShareOfMember(uint64_t member) const {
    return std::span(items_).subspan(begins_[member], begins_[member + 1] - begins_[member]);
  }

  const ReplicaGroup::Membership place_;
  std::vector<Item> items_;
  std::vector<size_t> begins_;  // first item of each member's share, and the end
};

// A load in which each box is read once. Groups are in the order in which the targets name them,
// which is the same on every rank.
class OnceLoad {
 public:
  OnceLoad(uint32_t rank, uint32_t world_size) : rank_(rank), world_size_(world_size) {}

  Result<void> Plan(const StepView& view, std::span<const ShardTarget> targets) {
    CAIRN_TRY_ASSIGN(world_, DeviceMesh::Make({{"world", world_size_}}));
    CAIRN_TRY_ASSIGN(fillings_, Fillings::Make(view, targets, rank_));
    for (const Filling& filling : fillings_.all) {
      GroupLoad* const group = GroupFor(filling);
      for (const ShardView& piece : filling.pieces)
        CAIRN_TRY(AddPiece(view, filling, piece, group));
    }
    for (GroupLoad* const group : order_) {
      if (group == nullptr) continue;
      group->Divide();
      group->AddOwnRequests(requests_);
    }
    return {};
  }

  const std::vector<LoadRequest>& requests() const { return requests_; }

  /// Sends what was read to the other ranks. Collective.
  Result<void> Exchange(Communicator& communicator, const kv::StepInfo& step,
                        const ShardLoadOptions& options) {
    Communicator& carrier =
        options.tensor_communicator == nullptr ? communicator : *options.tensor_communicator;
    Result<void> agreed;
    Result<void> done = ExchangeOver(carrier, communicator, step, options, agreed);
    if (done) return agreed;
    // The ranks have not agreed on a status. The others may wait in the carrier, which does not
    // have to detect that this rank has failed; the connections of the communicator do.
    if (&carrier != &communicator) communicator.Interrupt();
    return done;
  }

 private:
  /// `status` is set to what all ranks have agreed on. Errors are those of this rank only.
  Result<void> ExchangeOver(Communicator& carrier, Communicator& communicator,
                            const kv::StepInfo& step, const ShardLoadOptions& options,
                            Result<void>& status) {
    CAIRN_TRY_ASSIGN(const uint64_t rounds, MostGroups(communicator));
    std::vector<std::unique_ptr<Communicator>> parts;
    Result<void> agreed = {};
    for (uint64_t i = 0; i < rounds; ++i) {
      GroupLoad* const group = i < order_.size() ? order_[i] : nullptr;
      const ReplicaGroup::Membership place =
          group != nullptr ? group->place() : ReplicaGroup::Membership{.lowest_rank = rank_};
      CAIRN_TRY_ASSIGN(auto part,
                       carrier.Split(place.lowest_rank, static_cast<uint32_t>(place.index)));
      if (group != nullptr) {
        Result<void> checked = group->CheckAgreed(*part, step);
        // A disagreement is reported to all ranks below; a broken communicator ends the load now.
        if (!checked && checked.error().code != ErrorCode::kInvalidArgument) return checked;
        if (!checked && agreed) agreed = std::move(checked);
      } else if (part->world_size() > 1) {
        agreed =
            Fail(ErrorCode::kInvalidArgument,
                 "ranks that read for each other request different tensors; request the same, or "
                 "load without read_once");
        CAIRN_TRY(DeclineAgreement(*part));
      }
      parts.push_back(std::move(part));
    }
    auto mover = MakeMover(carrier, options);
    if (!mover && agreed) agreed = std::unexpected(mover.error());
    status = AgreeOnStatus(communicator, agreed);
    if (!status) return {};
    for (size_t i = 0; i < order_.size(); ++i) {
      if (order_[i] == nullptr) continue;
      CAIRN_TRY(order_[i]->Exchange(*parts[i], *mover, options.buffer_bytes));
    }
    return {};
  }

  // Takes part in CheckAgreed of a group that this rank has not planned, with an empty digest.
  static Result<void> DeclineAgreement(Communicator& group) {
    CAIRN_TRY(AllGatherValues(group, kv::Digest()));
    return {};
  }

  // Returns null if only this rank holds the tensor's boxes, or if it holds nothing of the tensor.
  // Each group is in order_ on all ranks, also on those that are not on its mesh.
  GroupLoad* GroupFor(const Filling& filling) {
    const Sharding* const sharding = filling.target->sharding;
    ReplicaGroup group = ReplicaGroup::Whole(*meshes_.Find(&*world_));
    if (sharding != nullptr) {
      if (sharding->mesh == nullptr) return nullptr;
      group = ReplicaGroup::Of(*sharding, meshes_);
    }
    if (group.dims == 0) return nullptr;
    const auto [found, is_new] = groups_.try_emplace(group, nullptr);
    if (is_new) {
      if (group.mesh->CoordinateOf(rank_)) {
        found->second = std::make_unique<GroupLoad>(group, rank_);
      }
      order_.push_back(found->second.get());
    }
    return found->second.get();
  }

  Result<void> AddPiece(const StepView& view, const Filling& filling, const ShardView& piece,
                        GroupLoad* group) {
    const std::string& fqn = filling.target->fqn;
    const auto request = [&](const Box& box, TensorTarget target) {
      return LoadRequest{.fqn = fqn, .box = box, .target = std::move(target)};
    };
    if (group == nullptr) {
      requests_.push_back(request(piece.box, AsTarget(piece.view)));
      return {};
    }
    if (piece.view.dtype != filling.stored->dtype || !BoxFits(piece.box, filling.stored->shape)) {
      // RunLoad returns the error.
      requests_.push_back(request(piece.box, AsTarget(piece.view)));
      return {};
    }
    const uint64_t element_bytes = schema::ElementBytes(filling.stored->dtype);
    const auto add = [&](const Box& box) {
      uint64_t bytes = element_bytes;
      for (const uint64_t size : box.sizes) bytes *= size;
      if (bytes == 0) return;
      group->Add({.fqn = &fqn, .box = box, .target = TargetOf(piece, box), .bytes = bytes});
    };
    if (filling.stored->alias_of) {
      add(piece.box);
      return {};
    }
    return ForEachChunk(view, *filling.stored, [&](ChunkInfo chunk) -> Result<void> {
      add(Intersect(chunk.box, piece.box));
      return {};
    });
  }

  // The mover is used for all groups, one after the other.
  Result<RoundMover> MakeMover(const Communicator& communicator,
                               const ShardLoadOptions& options) const {
    std::set<int> devices;
    for (const GroupLoad* const group : order_) {
      if (group != nullptr) group->AddDevices(devices);
    }
    return RoundMover::Make(communicator, std::max<uint64_t>(options.buffer_bytes, world_size_),
                            devices, options.streams);
  }

  Result<uint64_t> MostGroups(Communicator& communicator) const {
    CAIRN_TRY_ASSIGN(const std::vector<uint64_t> all,
                     AllGatherValues<uint64_t>(communicator, order_.size()));
    return std::ranges::max(all);
  }

  const uint32_t rank_;
  const uint32_t world_size_;
  std::optional<DeviceMesh> world_;  // the mesh of tensors without a sharding
  EqualMeshes meshes_;
  Fillings fillings_;
  std::map<ReplicaGroup, std::unique_ptr<GroupLoad>> groups_;
  std::vector<GroupLoad*> order_;      // null: this rank is not in the group
  std::vector<LoadRequest> requests_;  // of this rank
};

}  // namespace

Result<LoadReport> LoadOwnShards(const StepView& view, std::span<const ShardTarget> targets,
                                 uint32_t rank, const ShardLoadOptions& options) {
  CAIRN_TRY_ASSIGN(const Fillings fillings, Fillings::Make(view, targets, rank));
  std::vector<LoadRequest> requests;
  for (const Filling& filling : fillings.all) {
    for (const ShardView& piece : filling.pieces) {
      requests.push_back(
          {.fqn = filling.target->fqn, .box = piece.box, .target = AsTarget(piece.view)});
    }
  }
  return RunLoad(view, requests, options.progress, options.streams);
}

Result<LoadReport> LoadShardsOnce(const std::function<Result<StepView>()>& find_view,
                                  std::span<const ShardTarget> targets, Communicator& communicator,
                                  const ShardLoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  OnceLoad load(static_cast<uint32_t>(communicator.rank()),
                static_cast<uint32_t>(communicator.world_size()));
  LoadReport report;
  kv::StepInfo step;
  const auto read_own = [&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(const StepView view, find_view());
    step = view.step;
    CAIRN_TRY(load.Plan(view, targets));
    CAIRN_TRY_ASSIGN(report, RunLoad(view, load.requests(), options.progress, options.streams));
    return {};
  };
  CAIRN_TRY(AgreeOnStatus(communicator, CatchBadAlloc("a load", read_own)));
  CAIRN_TRY(load.Exchange(communicator, step, options));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  report.seconds = elapsed.count();
  return report;
}

}  // namespace cairn::core::internal
