// Broadcasts a full state to shards:
//   1. Every rank checks its arguments. The ranks agree on the status, and exchange the layout
//      messages of the targets (GlobalStateLayout) with a digest of how they describe the full
//      state.
//   2. Tensors are sent in batches, in the order of the full state. A rank receives a batch as one
//      stream, its boxes one after the other; a round moves the same share of each stream. Tensors
//      that all ranks hold completely are in separate batches, which Broadcast sends.
// After step 1 all ranks compute the same batches, streams and rounds.

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "core/collectives/internal/collective_call.h"
#include "core/collectives/internal/global_state_layout.h"
#include "core/collectives/internal/tensor_pairs.h"
#include "core/collectives/state_dict_collectives.h"
#include "core/device/internal/device_queues.h"
#include "core/ranks/internal/message_codec.h"
#include "core/ranks/internal/round_mover.h"
#include "core/state_dict/internal/leaves.h"
#include "core/tensor/internal/tensor_stream.h"
#include "kv/base/digest.h"

namespace cairn::core {
namespace {

using internal::GlobalStateLayout;
using internal::TensorStream;

constexpr uint32_t kRoot = 0;

// What one rank copies from the full state to its target.
struct Fill {
  std::vector<Leaf> full_leaves;
  std::vector<Leaf> target_leaves;
  std::vector<internal::TensorPair> pairs;
};

// Checks the states. `is_read`: this rank has the memory of the full state.
Result<Fill> PlanFill(const StateDict& full, bool is_read, const StateDict& target, uint32_t rank) {
  Fill fill;
  CAIRN_TRY_ASSIGN(fill.full_leaves, full.Leaves());
  if (is_read) CAIRN_TRY(internal::CheckMemory(full, fill.full_leaves));
  CAIRN_TRY_ASSIGN(fill.target_leaves, target.Leaves());
  CAIRN_TRY(internal::CheckShardings(target, fill.target_leaves, rank));
  CAIRN_TRY(internal::CheckMemory(target, fill.target_leaves));
  CAIRN_TRY_ASSIGN(fill.pairs,
                   internal::PairTensors(full, fill.full_leaves, target, fill.target_leaves));
  return fill;
}

// A box of the global tensor, and the memory that receives it.
struct TargetBox {
  Box box;
  TensorTarget memory;
};

// Returns the boxes of a tensor that `rank` fills, in the order of ShardViewsOf.
std::vector<TargetBox> BoxesToFill(const StateTarget& target, uint32_t tensor, uint32_t rank) {
  const TensorView& view = target.state().tensors[tensor];
  const Sharding* const sharding = internal::FindSharding(target.state(), tensor);
  std::vector<TargetBox> boxes;
  if (sharding == nullptr) {
    boxes.push_back({WholeBox(view.shape), target.Writable(view)});
    return boxes;
  }
  auto held = internal::ShardViewsHere(*sharding, view, rank);
  CAIRN_CHECK(held.has_value());  // PlanFill has checked the target
  for (ShardView& shard : *held) {
    boxes.push_back({std::move(shard.box), target.Writable(shard.view)});
  }
  return boxes;
}

// Returns a digest of the names, dtypes and shapes. Ranks that disagree about them would wait for
// different messages.
uint64_t DescriptionDigest(const StateDict& full, const std::vector<Leaf>& leaves) {
  internal::MessageWriter writer;
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    if (!IsTensor(full.tree.nodes[leaves[i].node].kind)) continue;
    writer.Text(leaves[i].fqn);
    writer.Number(static_cast<uint64_t>(full.tensors[full.slot[i]].dtype));
    writer.Numbers(full.tensors[full.slot[i]].shape);
  }
  return kv::Checksum64(std::move(writer).Take());
}

class Broadcaster {
 public:
  Broadcaster(const StateDict& full, const StateTarget& target, Communicator& communicator,
              const CollectiveOptions& options)
      : full_(full), target_(target), call_(communicator, options) {}

  Result<void> Run() {
    const Result<void> checked = CheckLocally();
    const std::array<uint64_t, 2> agreed = {call_.options.buffer_bytes,
                                            DescriptionDigest(full_, fill_.full_leaves)};
    CAIRN_TRY_ASSIGN(layout_, GlobalStateLayout::Exchange(call_.communicator, target_.state(),
                                                          fill_.target_leaves, checked, agreed));
    FindTransfers();
    for (size_t i = 0; i < transfers_.size();) CAIRN_TRY(MoveBatch(i));
    return {};
  }

 private:
  struct Transfer {
    const GlobalStateLayout::Entry* entry = nullptr;
    const TensorView* full = nullptr;     // has memory on the root only
    std::optional<uint32_t> target = {};  // tensor of this rank's target, if it has the key
    // All ranks except the root receive this; or the length of the tensor, if whole_on_all.
    uint64_t length_bytes = 0;
    bool whole_on_all = false;
  };

  bool is_root() const { return call_.rank == kRoot; }

  Result<void> CheckLocally() {
    CAIRN_TRY(call_.CheckBuffer());
    CAIRN_TRY_ASSIGN(fill_, PlanFill(full_, is_root(), target_.state(), call_.rank));
    std::set<int> devices;
    internal::AddDevices(target_.state(), devices);
    if (is_root()) internal::AddDevices(full_, devices);
    CAIRN_TRY_ASSIGN(mover_, call_.MakeMover(devices));
    return {};
  }

  std::vector<Box> BoxesOf(const Transfer& transfer, uint32_t rank) const {
    if (!layout_->Has(*transfer.entry, rank)) return {};
    if (transfer.entry->kind != GlobalStateLayout::Entry::Kind::kWhole) {
      return layout_->BoxesOf(*transfer.entry, rank);
    }
    return {WholeBox(transfer.full->shape)};
  }

  void FindTransfers() {
    std::vector<std::optional<uint32_t>> target_of(fill_.full_leaves.size());
    for (const auto& pair : fill_.pairs) target_of[pair.whole] = target_.state().slot[pair.shards];
    for (uint32_t i = 0; i < fill_.full_leaves.size(); ++i) {
      const Leaf& leaf = fill_.full_leaves[i];
      const int64_t entry = layout_->Find(leaf.fqn);
      if (!IsTensor(full_.tree.nodes[leaf.node].kind) || entry < 0) continue;
      const TensorView& full = full_.tensors[full_.slot[i]];
      // Each rank that has the key has compared the dtype and shape with its target.
      const uint64_t tensor_bytes = *TensorBytes(full.dtype, full.shape);
      if (tensor_bytes == 0) continue;
      Transfer transfer{.entry = &layout_->entries()[static_cast<size_t>(entry)],
                        .full = &full,
                        .target = target_of[i]};
      transfer.whole_on_all = true;
      for (uint32_t rank = 0; rank < call_.world_size; ++rank) {
        const auto boxes = BoxesOf(transfer, rank);
        transfer.whole_on_all &= boxes.size() == 1 && boxes[0].sizes == full.shape;
        for (const Box& box : boxes) {
          if (rank != kRoot) transfer.length_bytes += *TensorBytes(full.dtype, box.sizes);
        }
      }
      if (transfer.whole_on_all) transfer.length_bytes = tensor_bytes;
      transfers_.push_back(transfer);
    }
  }

  // Adds what each rank receives of a tensor to the streams, which are by rank; the root's stream
  // is for a Broadcast.
  Result<void> AddToStreams(const Transfer& transfer, std::vector<internal::PeerStream>& streams) {
    std::vector<TargetBox> mine;
    if (transfer.target) mine = BoxesToFill(target_, *transfer.target, call_.rank);
    TensorStream<TensorTarget>& received =
        streams[transfer.whole_on_all ? kRoot : call_.rank].target;
    for (TargetBox& shard : mine) {
      if (is_root()) {
        CAIRN_TRY(mover_.queues().Copy(Narrow(*transfer.full, shard.box), shard.memory));
      } else {
        received.Add(std::move(shard.memory));
      }
    }
    if (transfer.whole_on_all) {
      if (is_root()) streams[kRoot].source.Add(*transfer.full);
      return {};
    }
    for (uint32_t rank = 1; rank < call_.world_size; ++rank) {
      for (const Box& box : BoxesOf(transfer, rank)) {
        streams[rank].length_bytes += *TensorBytes(transfer.full->dtype, box.sizes);
        if (is_root()) streams[rank].source.Add(Narrow(*transfer.full, box));
      }
    }
    return {};
  }

  // Moves the transfers from `next` on that fit into one round together. A transfer that is too
  // large for a round is a batch of several rounds.
  Result<void> MoveBatch(size_t& next) {
    // The range of a rank may be one byte longer than its share.
    const uint64_t round_bytes = call_.options.buffer_bytes - call_.world_size;
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
    if (!by_broadcast) return call_.Move(streams, total_bytes, round_bytes, mover_);
    const uint64_t rounds = DivCeil(total_bytes, round_bytes);
    for (uint64_t round = 0; round < rounds; ++round) {
      const auto range = internal::RangeOfRound(total_bytes, round, rounds);
      CAIRN_TRY(BroadcastRound(streams[kRoot], range.begin, range.count));
    }
    return {};
  }

  Result<void> BroadcastRound(const internal::PeerStream& stream, uint64_t begin, uint64_t count) {
    mover_.Begin();
    ByteTarget bytes;
    if (is_root()) {
      // The communicator may write to the range of the root, so this is never the full state.
      CAIRN_TRY_ASSIGN(bytes, mover_.Pack(stream.source, begin, count));
    } else {
      bytes = mover_.Target(stream.target, begin, count);
    }
    CAIRN_TRY(mover_.Packed());
    CAIRN_TRY(call_.carrier.Broadcast(bytes, kRoot));
    return mover_.Unpack();
  }

  const StateDict& full_;
  const StateTarget target_;
  const internal::CollectiveCall call_;
  Fill fill_;
  std::optional<GlobalStateLayout> layout_;  // layout of the targets
  std::vector<Transfer> transfers_;          // in the order of `full`, the same on all ranks
  internal::RoundMover mover_;
};

}  // namespace

Result<void> DistributeStateDict(const StateDict& full, const StateTarget& target, uint32_t rank,
                                 std::span<const DeviceStream> streams) {
  CAIRN_TRY_ASSIGN(const Fill fill, PlanFill(full, true, target.state(), rank));
  std::set<int> devices;
  internal::AddDevices(full, devices);
  internal::AddDevices(target.state(), devices);
  CAIRN_TRY_ASSIGN(const auto queues, internal::DeviceQueues::Open(devices, streams));
  for (const auto& pair : fill.pairs) {
    const TensorView& whole = full.tensors[full.slot[pair.whole]];
    for (const TargetBox& shard : BoxesToFill(target, target.state().slot[pair.shards], rank)) {
      CAIRN_TRY(queues.Copy(Narrow(whole, shard.box), shard.memory));
    }
  }
  return queues.Await();
}

Result<void> BroadcastStateDict(const StateDict& full, const StateTarget& target,
                                Communicator& communicator, const CollectiveOptions& options) {
  return Broadcaster(full, target, communicator, options).Run();
}

}  // namespace cairn::core
