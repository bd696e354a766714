// Loads for any mesh: each rank reads its part itself, or one of the ranks that need a part reads
// it and sends it to the others. How boxes are read once and sent to all ranks that need them:
//
// 1. The boxes that the same ranks need (a GroupLoad) are divided along the stored chunks, which
//    all of these ranks find in the step, into windows, and each window into one share of equal
//    bytes per rank. The ranks agree that they have planned the same.
// 2. Each rank reads its share of a window into its own targets, on another thread. The ranks then
//    agree on the status: if one has failed, all fail.
// 3. While the next window is read, in rounds of bounded size, each rank sends the next part of its
//    share of this window to the other ranks of the group, as row-major bytes in the order of the
//    items. The receivers know from the plan what they get.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <set>

#include "core/load/internal/load.h"
#include "core/load/internal/read_plan.h"
#include "core/ranks/communicator.h"
#include "core/ranks/gather_values.h"
#include "core/ranks/internal/round_mover.h"
#include "core/ranks/status_agreement.h"
#include "core/state_dict/internal/leaves.h"
#include "core/step/internal/lookup.h"
#include "core/step/internal/tensor_records.h"
#include "core/tensor/internal/replica_group.h"
#include "core/tensor/internal/tensor_stream.h"
#include "kv/base/catch_exhaustion.h"
#include "kv/base/digest.h"
#include "kv/base/div.h"

namespace cairn::core::internal {
namespace {

// Returns the memory of a target as a view of the bytes that it contains.
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
    std::vector<std::string_view> fqns;
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

// The part of a shard's memory that holds `box`, which is inside the shard's box.
TensorTarget TargetOf(const ShardView& shard, Box box) {
  for (size_t d = 0; d < box.offsets.size(); ++d) box.offsets[d] -= shard.box.offsets[d];
  return Narrow(AsTarget(shard.view), box);
}

// A load on another thread, or in Take if the system has no more threads. Uses `view` or newer ones
// (WithView). Ownership: the arguments and the targets outlive it; the destructor cancels the load
// and waits for its end. Threads: one at a time.
class BackgroundLoad {
 public:
  BackgroundLoad(const kv::Store& store, const StepView& view, std::vector<LoadRequest> requests,
                 std::span<const DeviceStream> streams)
      : requests_(std::move(requests)),
        result_(std::async([this, &store, &view, streams] { return Load(store, view, streams); })) {
  }
  ~BackgroundLoad() { Cancel(); }
  BackgroundLoad(const BackgroundLoad&) = delete;
  BackgroundLoad& operator=(const BackgroundLoad&) = delete;

  /// Waits for the end of the load, at most for `timeout`. Returns whether Take need not wait.
  bool WaitFor(std::chrono::milliseconds timeout) const {
    return result_.wait_for(timeout) != std::future_status::timeout;
  }
  /// Bytes of the requests that have been loaded.
  uint64_t done_bytes() const { return done_bytes_; }
  /// Makes the load end soon, with kCancelled.
  void Cancel() { is_cancelled_ = true; }
  /// Returns the result. Call once.
  Result<LoadReport> Take() { return result_.get(); }

 private:
  Result<LoadReport> Load(const kv::Store& store, const StepView& view,
                          std::span<const DeviceStream> streams) {
    const Progress progress = [this](uint64_t done, uint64_t) {
      done_bytes_ = done;
      return !is_cancelled_;
    };
    return kv::CatchExhaustion("a load", [&] {
      return WithView(store, view, [&](const StepView& current) {
        return RunLoad(current, requests_, progress, streams);
      });
    });
  }

  const std::vector<LoadRequest> requests_;
  std::atomic<uint64_t> done_bytes_ = 0;
  std::atomic<bool> is_cancelled_ = false;
  std::future<Result<LoadReport>> result_;  // destroyed first: it waits for the load
};

// A box that all ranks of a group need and one of them reads.
struct GroupItem {
  const std::string* fqn = nullptr;
  Box box;
  TensorTarget target;  // target of the box
  uint64_t bytes = 0;
};

// The load of one group of ranks, which read items and send them to each other. The items are
// divided into windows, which are read and sent one after another, and each window into one share
// per rank. All ranks of the group add the same items and divide them in the same way. Threads:
// one at a time.
class GroupLoad {
 public:
  GroupLoad(const ReplicaGroup& group, uint32_t rank) : place_(group.MembershipOf(rank)) {}

  const ReplicaGroup::Membership& place() const { return place_; }
  void Add(GroupItem item) {
    total_bytes_ += item.bytes;
    items_.push_back(std::move(item));
  }
  /// Bytes that each rank of the group reads, on average.
  uint64_t share_bytes() const { return total_bytes_ / place_.size; }

  /// Call once, after the last Add. Requires `window_count > 0`.
  void Divide(uint64_t window_count) {
    CAIRN_CHECK(begins_.empty() && window_count > 0);
    const uint64_t share_count = window_count * place_.size;
    uint64_t before_bytes = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      const uint64_t share = ShareOf(before_bytes + items_[i].bytes / 2, total_bytes_, share_count);
      while (begins_.size() <= share) begins_.push_back(i);
      before_bytes += items_[i].bytes;
    }
    while (begins_.size() <= share_count) begins_.push_back(items_.size());
  }

  // After Divide:

  void AddOwnRequests(uint64_t window, std::vector<LoadRequest>& requests) const {
    for (const GroupItem& item : ShareOfMember(window, place_.index)) {
      requests.push_back({.fqn = *item.fqn, .box = item.box, .target = item.target});
    }
  }

  /// Checks that all ranks of the group have planned the same items. Collective over the group.
  /// kInvalidArgument: they have not.
  Result<void> CheckAgreed(Communicator& group, const kv::StepInfo& step) const {
    std::string plan = fmt::format("{} {} {}", step.step, step.generation, step.attempt);
    for (const GroupItem& item : items_) {
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
    for (const GroupItem& item : items_) {
      if (item.target.device != kHostDevice) devices.insert(item.target.device);
    }
  }

  /// Sends this rank's share of a window to the group and receives the shares of the others.
  /// Collective over the group. Requires a mover with a buffer of at least max(buffer_bytes, one
  /// byte per rank).
  Result<void> Exchange(uint64_t window, Communicator& group, RoundMover& mover,
                        uint64_t buffer_bytes) const {
    const uint64_t round_bytes = std::max<uint64_t>(buffer_bytes / place_.size, 1);
    TensorStream<TensorView> mine;
    for (const GroupItem& item : ShareOfMember(window, place_.index)) mine.Add(AsView(item.target));
    std::vector<TensorStream<TensorTarget>> shares(place_.size);
    uint64_t longest = 0;
    for (uint64_t member = 0; member < place_.size; ++member) {
      for (const GroupItem& item : ShareOfMember(window, member)) shares[member].Add(item.target);
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
  std::span<const GroupItem> ShareOfMember(uint64_t window, uint64_t member) const {
    const uint64_t share = window * place_.size + member;
    return std::span(items_).subspan(begins_[share], begins_[share + 1] - begins_[share]);
  }

  const ReplicaGroup::Membership place_;
  std::vector<GroupItem> items_;
  uint64_t total_bytes_ = 0;  // of the items
  // First item of each member's share of each window, in this order, and the end.
  std::vector<size_t> begins_;
};

// A load in which each box is read once. Groups are in the order in which the targets name them,
// which is the same on every rank.
class OnceLoad {
 public:
  OnceLoad(Communicator& communicator, const ShardLoadOptions& options)
      : communicator_(communicator),
        carrier_(options.tensor_communicator == nullptr ? communicator
                                                        : *options.tensor_communicator),
        options_(options),
        rank_(static_cast<uint32_t>(communicator.rank())),
        world_size_(static_cast<uint32_t>(communicator.world_size())) {}

  /// Finds the boxes and checks all requests. Not collective.
  Result<void> Plan(const StepView& view, std::span<const ShardTarget> targets) {
    CAIRN_TRY_ASSIGN(world_, DeviceMesh::Make({{"world", world_size_}}));
    CAIRN_TRY_ASSIGN(fillings_, Fillings::Make(view, targets, rank_));
    std::vector<LoadRequest> all;
    for (const Filling& filling : fillings_.all) {
      GroupLoad* const group = GroupFor(filling);
      for (const ShardView& piece : filling.pieces) {
        CAIRN_TRY(AddPiece(view, filling, piece, group));
        all.push_back(
            {.fqn = filling.target->fqn, .box = piece.box, .target = AsTarget(piece.view)});
      }
    }
    CAIRN_TRY(ReadPlan::Make(view, all));
    return {};
  }

  /// Agrees with the other ranks on the groups and windows. Collective. Requires Plan on all ranks.
  Result<void> Prepare(const kv::StepInfo& step) {
    Result<void> agreed;
    Result<void> done = AgreeOnGroups(step, agreed);
    return done ? std::move(agreed) : Broken(std::move(done));
  }

  /// Reads and sends all windows. Collective. Requires Prepare on all ranks.
  Result<LoadReport> Run(const kv::Store& store, const StepView& view) {
    LoadReport report;
    for (uint64_t window = 0; window < window_count_; ++window) {
      BackgroundLoad load(store, view, RequestsOf(window), options_.streams);
      if (window > 0) {
        Result<void> sent = Exchange(window - 1);
        if (!sent) return Broken(std::move(sent));
      }
      const Result<LoadReport> read = Await(load);
      CAIRN_TRY(AgreeOnStatus(communicator_, read));
      report.bytes_read += read->bytes_read;
    }
    Result<void> sent = Exchange(window_count_ - 1);
    if (!sent) return Broken(std::move(sent));
    return report;
  }

 private:
  /// The ranks have not agreed on a status. The others may wait in the carrier, which does not have
  /// to detect that this rank has failed; the connections of the communicator do.
  std::unexpected<Error> Broken(Result<void> error) {
    if (&carrier_ != &communicator_) communicator_.Interrupt();
    return std::unexpected(std::move(error).error());
  }

  /// `status` is set to the status on which all ranks agree. Returns errors of this rank only.
  Result<void> AgreeOnGroups(const kv::StepInfo& step, Result<void>& status) {
    struct Counts {
      uint64_t groups = 0;
      uint64_t windows = 0;
    };
    const Counts own{.groups = order_.size(),
                     .windows = std::max<uint64_t>(DivCeil(own_bytes(), options_.window_bytes), 1)};
    CAIRN_TRY_ASSIGN(const std::vector<Counts> all, AllGatherValues(communicator_, own));
    const uint64_t group_count = std::ranges::max(all, {}, &Counts::groups).groups;
    window_count_ = std::ranges::max(all, {}, &Counts::windows).windows;
    Result<void> agreed = {};
    for (uint64_t i = 0; i < group_count; ++i) {
      GroupLoad* const group = i < order_.size() ? order_[i] : nullptr;
      const ReplicaGroup::Membership place =
          group != nullptr ? group->place() : ReplicaGroup::Membership{.lowest_rank = rank_};
      CAIRN_TRY_ASSIGN(auto part,
                       carrier_.Split(place.lowest_rank, static_cast<uint32_t>(place.index)));
      if (group != nullptr) {
        group->Divide(window_count_);
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
      parts_.push_back(std::move(part));
    }
    auto mover = MakeMover();
    if (mover) {
      mover_ = *std::move(mover);
    } else if (agreed) {
      agreed = std::unexpected(mover.error());
    }
    status = AgreeOnStatus(communicator_, agreed);
    return {};
  }

  // Takes part in CheckAgreed of a group that this rank has not planned, with an empty digest.
  static Result<void> DeclineAgreement(Communicator& group) {
    CAIRN_TRY(AllGatherValues(group, kv::Digest()));
    return {};
  }

  uint64_t own_bytes() const {
    uint64_t bytes = ungrouped_bytes_;
    for (const GroupLoad* const group : order_) {
      if (group != nullptr) bytes += group->share_bytes();
    }
    return bytes;
  }

  /// The requests that this rank reads in a window. The first includes its ungrouped requests.
  std::vector<LoadRequest> RequestsOf(uint64_t window) {
    std::vector<LoadRequest> requests;
    if (window == 0) requests = std::move(ungrouped_);
    for (const GroupLoad* const group : order_) {
      if (group != nullptr) group->AddOwnRequests(window, requests);
    }
    return requests;
  }

  /// Waits for the end of `load`, and reports the progress.
  Result<LoadReport> Await(BackgroundLoad& load) {
    const uint64_t total_bytes = own_bytes();
    bool is_cancelled = false;
    const auto report = [&](uint64_t done_bytes) {
      if (!options_.progress || total_bytes == 0 || is_cancelled) return;
      is_cancelled =
          !options_.progress(std::min(read_bytes_ + done_bytes, total_bytes), total_bytes);
      if (is_cancelled) load.Cancel();
    };
    while (!load.WaitFor(std::chrono::milliseconds(50))) report(load.done_bytes());
    Result<LoadReport> result = load.Take();
    report(load.done_bytes());
    read_bytes_ += load.done_bytes();
    if (is_cancelled && result) return Fail(ErrorCode::kCancelled, "stopped as asked");
    return result;
  }

  /// Sends a window that was read to the other ranks. Collective.
  Result<void> Exchange(uint64_t window) {
    for (size_t i = 0; i < order_.size(); ++i) {
      if (order_[i] == nullptr) continue;
      CAIRN_TRY(order_[i]->Exchange(window, *parts_[i], mover_, options_.buffer_bytes));
    }
    return {};
  }

  // Returns null if only this rank holds the tensor's boxes, or if it holds nothing of the tensor.
  // Each group is in order_ on all ranks, also on ranks that are not on its mesh.
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
    // Plan returns the error of a request that is not valid.
    if (piece.view.dtype != filling.stored->dtype || !BoxFits(piece.box, filling.stored->shape)) {
      return {};
    }
    const uint64_t element_bytes = schema::ElementBytes(filling.stored->dtype);
    const auto bytes_of = [&](const Box& box) {
      uint64_t bytes = element_bytes;
      for (const uint64_t size : box.sizes) bytes *= size;
      return bytes;
    };
    if (group == nullptr) {
      ungrouped_bytes_ += bytes_of(piece.box);
      ungrouped_.push_back({.fqn = fqn, .box = piece.box, .target = AsTarget(piece.view)});
      return {};
    }
    const auto add = [&](const Box& box) {
      const uint64_t bytes = bytes_of(box);
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
  Result<RoundMover> MakeMover() const {
    std::set<int> devices;
    for (const GroupLoad* const group : order_) {
      if (group != nullptr) group->AddDevices(devices);
    }
    return RoundMover::Make(carrier_, std::max<uint64_t>(options_.buffer_bytes, world_size_),
                            devices, options_.streams);
  }

  Communicator& communicator_;
  Communicator& carrier_;  // sends the bytes of tensors
  const ShardLoadOptions& options_;
  const uint32_t rank_;
  const uint32_t world_size_;
  std::optional<DeviceMesh> world_;  // the mesh of tensors without a sharding
  EqualMeshes meshes_;
  Fillings fillings_;
  std::map<ReplicaGroup, std::unique_ptr<GroupLoad>> groups_;
  std::vector<GroupLoad*> order_;       // null: this rank is not in the group
  std::vector<LoadRequest> ungrouped_;  // requests that only this rank needs
  uint64_t ungrouped_bytes_ = 0;
  // Set by Prepare:
  uint64_t window_count_ = 0;
  std::vector<std::unique_ptr<Communicator>> parts_;  // communicators of the groups in order_
  RoundMover mover_;
  // Set by Run:
  uint64_t read_bytes_ = 0;  // bytes of the windows before
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

Result<LoadReport> LoadShardsOnce(const kv::Store& store, const kv::StepInfo& step,
                                  std::span<const ShardTarget> targets, Communicator& communicator,
                                  const ShardLoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  OnceLoad load(communicator, options);
  std::optional<StepView> view;
  const auto plan = [&]() -> Result<void> {
    if (options.window_bytes == 0) {
      return Fail(ErrorCode::kInvalidArgument, "window_bytes is 0; give at least 1");
    }
    CAIRN_TRY_ASSIGN(view, ViewStep(store, step));
    return load.Plan(*view, targets);
  };
  CAIRN_TRY(AgreeOnStatus(communicator, kv::CatchExhaustion("a load", plan)));
  CAIRN_TRY(load.Prepare(view->step));
  CAIRN_TRY_ASSIGN(LoadReport report, load.Run(store, *view));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  report.seconds = elapsed.count();
  return report;
}

}  // namespace cairn::core::internal
