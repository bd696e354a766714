// Broadcasts a full state to shards:
//   1. Every rank checks its arguments. The ranks agree on the status, and exchange the layout
//      messages of the targets (GlobalStateLayout).
//   2. Rank 0 broadcasts a description of its leaves, including values.
//   3. Every rank plans and allocates its result. The ranks agree on the status.
//   4. Tensors are sent in batches, in the order of rank 0. A rank receives a batch as one stream,
//      its boxes one after the other; a round moves the same share of each stream. Tensors that all
//      ranks hold completely are in separate batches, which Broadcast sends.
// From step 2 on all ranks compute the same batches, streams and rounds.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "core/collectives/internal/collective_call.h"
#include "core/collectives/internal/global_state_layout.h"
#include "core/collectives/internal/shard_plan.h"
#include "core/collectives/state_dict_collectives.h"
#include "core/device/internal/device_queues.h"
#include "core/ranks/gather_v.h"
#include "core/ranks/internal/round_mover.h"
#include "core/ranks/status_agreement.h"
#include "core/state_dict/internal/leaves.h"
#include "core/tensor/internal/tensor_stream.h"

namespace cairn::core {

Result<HostState> DistributeStateDict(const StateDict& full, const StateTarget& target,
                                      uint32_t rank, const BroadcastOptions& options) {
  CAIRN_TRY_ASSIGN(const auto described, internal::DescribeFull(full));
  CAIRN_TRY_ASSIGN(const auto leaves, target.state().Leaves());
  CAIRN_TRY_ASSIGN(internal::ShardPlan plan,
                   internal::PlanShards(described, target.state(), leaves, rank, options));
  std::set<int> devices;
  internal::AddDevices(full, devices);
  internal::AddDevices(plan.result.state(), devices);
  CAIRN_TRY_ASSIGN(const auto queues, internal::DeviceQueues::Open(devices, options.streams));
  for (const auto& fill : plan.fills) {
    const TensorView& whole = full.tensors[full.slot[fill.full_leaf]];
    for (const auto& shard : internal::ShardViewsToFill(plan, fill, rank)) {
      CAIRN_TRY(queues.Copy(Narrow(whole, shard.box), shard.target));
    }
  }
  CAIRN_TRY(queues.Await());
  if (options.report != nullptr) *options.report = {};
  return std::move(plan.result);
}

namespace {

using internal::GlobalStateLayout;
using internal::TensorStream;

constexpr uint32_t kRoot = 0;

class Broadcaster {
 public:
  Broadcaster(const StateDict& full, const StateTarget& target, Communicator& communicator,
              const BroadcastOptions& options)
      : full_(full), target_(target.state()), call_(communicator, options), options_(options) {}

  Result<HostState> Run() {
    const Result<void> checked = CheckLocally();
    const std::array<uint64_t, 3> agreed = {options_.buffer_bytes, options_.strict ? 1u : 0u,
                                            options_.cpu_offload ? 1u : 0u};
    CAIRN_TRY_ASSIGN(layout_, GlobalStateLayout::Exchange(call_.communicator, target_,
                                                          target_leaves_, checked, agreed));
    CAIRN_TRY(ShareDescription());
    const Result<void> planned = Plan();
    CAIRN_TRY(AgreeOnStatus(call_.communicator, planned));
    FindTransfers();
    for (size_t i = 0; i < transfers_.size();) CAIRN_TRY(MoveBatch(i));
    call_.Report(report_, mover_);
    return std::move(plan_.result);
  }

 private:
  struct Transfer {
    size_t full_leaf = 0;
    const GlobalStateLayout::Entry* entry = nullptr;
    uint64_t length_bytes =
        0;  // all ranks except the root receive this; or the tensor, if whole_on_all
    bool whole_on_all = false;
  };

  bool is_root() const { return call_.rank == kRoot; }

  Result<void> CheckLocally() {
    CAIRN_TRY(call_.CheckBuffer());
    CAIRN_TRY_ASSIGN(target_leaves_, target_.Leaves());
    CAIRN_TRY(internal::CheckShardings(target_, target_leaves_, call_.rank));
    if (is_root()) {
      CAIRN_TRY_ASSIGN(described_, internal::DescribeFull(full_));
    }
    std::set<int> devices;
    internal::AddDevices(target_, devices);
    if (is_root()) internal::AddDevices(full_, devices);
    CAIRN_TRY_ASSIGN(mover_, call_.MakeMover(devices));
    return {};
  }

  Result<void> ShareDescription() {
    CAIRN_TRY_ASSIGN(
        const ByteVector bytes,
        BroadcastV(call_.communicator, is_root() ? internal::EncodeFull(described_) : ByteVector(),
                   kRoot));
    if (!is_root()) {
      CAIRN_TRY_ASSIGN(described_, internal::DecodeFull(bytes));
    }
    return {};
  }

  Result<void> Plan() {
    CAIRN_TRY_ASSIGN(
        plan_, internal::PlanShards(described_, target_, target_leaves_, call_.rank, options_));
    return {};
  }

  std::vector<Box> BoxesOf(const Transfer& transfer, uint32_t rank) const {
    if (!layout_->Has(*transfer.entry, rank)) return {};
    if (transfer.entry->kind != GlobalStateLayout::Entry::Kind::kWhole) {
      return layout_->BoxesOf(*transfer.entry, rank);
    }
    return {WholeBox(described_[transfer.full_leaf].shape)};
  }

  void FindTransfers() {
    for (size_t i = 0; i < described_.size(); ++i) {
      const internal::FullLeaf& leaf = described_[i];
      const int64_t entry = layout_->Find(leaf.fqn);
      if (!IsTensor(leaf.kind) || entry < 0) continue;
      Transfer transfer{.full_leaf = i, .entry = &layout_->entries()[static_cast<size_t>(entry)]};
      // Each rank that has the key has compared the dtype and shape with its target.
      const uint64_t tensor_bytes = *TensorBytes(leaf.dtype, leaf.shape);
      if (tensor_bytes == 0) continue;
      transfer.whole_on_all = true;
      for (uint32_t rank = 0; rank < call_.world_size; ++rank) {
        const auto boxes = BoxesOf(transfer, rank);
        transfer.whole_on_all &= boxes.size() == 1 && boxes[0].sizes == leaf.shape;
        for (const Box& box : boxes) {
          if (rank != kRoot) transfer.length_bytes += *TensorBytes(leaf.dtype, box.sizes);
        }
      }
      if (transfer.whole_on_all) transfer.length_bytes = tensor_bytes;
      transfers_.push_back(transfer);
    }
  }

  // Returns the boxes of this rank's result; none if it lacks the key.
  std::vector<internal::ShardTargetBox> MyBoxes(const Transfer& transfer) {
    const auto fill = std::ranges::lower_bound(plan_.fills, transfer.full_leaf, {},
                                               &internal::ShardPlan::Fill::full_leaf);
    if (fill == plan_.fills.end() || fill->full_leaf != transfer.full_leaf) return {};
    return internal::ShardViewsToFill(plan_, *fill, call_.rank);
  }

  // Adds what each rank receives of a tensor to the streams, which are by rank; that of the root is
  // for a Broadcast.
  Result<void> AddToStreams(const Transfer& transfer, std::vector<internal::PeerStream>& streams) {
    const internal::FullLeaf& leaf = described_[transfer.full_leaf];
    if (!is_root()) {
      TensorStream<TensorTarget>& mine = streams[transfer.whole_on_all ? kRoot : call_.rank].target;
      for (internal::ShardTargetBox& shard : MyBoxes(transfer)) mine.Add(std::move(shard.target));
    }
    const TensorView* const whole =
        is_root() ? &full_.tensors[full_.slot[transfer.full_leaf]] : nullptr;
    if (is_root()) {
      for (const internal::ShardTargetBox& shard : MyBoxes(transfer)) {
        CAIRN_TRY(mover_.queues().Copy(Narrow(*whole, shard.box), shard.target));
      }
      if (transfer.whole_on_all) streams[kRoot].source.Add(*whole);
    }
    if (transfer.whole_on_all) return {};
    for (uint32_t rank = 1; rank < call_.world_size; ++rank) {
      for (const Box& box : BoxesOf(transfer, rank)) {
        streams[rank].length_bytes += *TensorBytes(leaf.dtype, box.sizes);
        if (is_root()) streams[rank].source.Add(Narrow(*whole, box));
      }
    }
    return {};
  }

  // Moves the transfers from `next` on that fit into one round together. A transfer that is too
  // large for a round is a batch of several rounds.
  Result<void> MoveBatch(size_t& next) {
    // The range of a rank may be one byte longer than its share.
    const uint64_t round_bytes = options_.buffer_bytes - call_.world_size;
    const bool by_broadcast = transfers_[next].whole_on_all;
    std::vector<internal::PeerStream> streams(call_.world_size);
    for (uint32_t rank = 1; rank < call_.world_size; ++rank) {
      streams[rank] = {.sender = kRoot, .receivers = {rank}};
    }
    uint64_t total_bytes = 0;
    do {
      total_bytes += transfers_[next].length_bytes;
      CAIRN_TRY(AddToStreams(transfers_[next++], streams));
    } while (next < transfers_.size() && transfers_[next].whole_on_all == by_broadcast &&
             total_bytes + transfers_[next].length_bytes <= round_bytes);
    // No other rank receives anything, so that there is no round that waits for the root's copies.
    if (call_.world_size == 1 || total_bytes == 0) return mover_.queues().Await();
    if (!by_broadcast) return call_.Move(streams, total_bytes, round_bytes, mover_, report_);
    const uint64_t rounds = DivCeil(total_bytes, round_bytes);
    for (uint64_t round = 0; round < rounds; ++round) {
      const auto range = internal::RangeOfRound(total_bytes, round, rounds);
      CAIRN_TRY(BroadcastRound(streams[kRoot], range.begin, range.count));
    }
    return {};
  }

  Result<void> BroadcastRound(const internal::PeerStream& stream, uint64_t begin, uint64_t count) {
    mover_.Begin();
    ++report_.round_count;
    ByteTarget bytes;
    if (is_root()) {
      // The communicator may write to the range of the root, so this is never the full state.
      CAIRN_TRY_ASSIGN(bytes, mover_.Pack(stream.source, begin, count));
    } else {
      bytes = mover_.Target(stream.target, begin, count);
    }
    CAIRN_TRY(mover_.Packed());
    CAIRN_TRY(call_.carrier.Broadcast(bytes, kRoot));
    (is_root() ? report_.sent_bytes : report_.received_bytes) += count;
    return mover_.Unpack();
  }

  const StateDict& full_;  // used on rank 0 only
  StateDict& target_;
  const internal::CollectiveCall call_;
  const BroadcastOptions& options_;
  std::vector<Leaf> target_leaves_;
  std::vector<internal::FullLeaf> described_;  // leaves of rank 0
  std::optional<GlobalStateLayout> layout_;    // layout of the targets
  internal::ShardPlan plan_;
  std::vector<Transfer> transfers_;  // in the order of rank 0, the same on all ranks
  // Destroyed before the plan, because after an error it may still write to the result.
  internal::RoundMover mover_;
  TransferReport report_;
};

}  // namespace

Result<HostState> BroadcastStateDict(const StateDict& full, const StateTarget& target,
                                     Communicator& communicator, const BroadcastOptions& options) {
  return Broadcaster(full, target, communicator, options).Run();
}

}  // namespace cairn::core
