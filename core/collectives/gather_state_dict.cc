// Gathers shards:
//   1. Every rank checks its states. The ranks agree on the status, and exchange layout messages
//      (GlobalStateLayout).
//   2. Tensors are sent in batches, in the order of the layout. One rank is chosen to send each
//      element of a tensor. The bytes that a rank sends of a batch are one stream, its boxes one
//      after the other; a round moves the same share of each stream to the receivers.
// After step 1 all ranks compute the same batches, streams and rounds.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/collectives/internal/collective_call.h"
#include "core/collectives/internal/global_state_layout.h"
#include "core/collectives/internal/tensor_pairs.h"
#include "core/collectives/state_dict_collectives.h"
#include "core/ranks/internal/round_mover.h"
#include "core/state_dict/internal/leaves.h"
#include "core/tensor/internal/tensor_stream.h"

namespace cairn::core {
namespace {

using internal::GlobalStateLayout;
using Entry = GlobalStateLayout::Entry;

// The boxes of a tensor that one rank sends.
struct Holding {
  uint32_t rank = 0;
  std::vector<Box> boxes;  // in the order of ShardViewsHere
};

class Gatherer {
 public:
  Gatherer(const StateDict& state, const StateTarget& whole, Communicator& communicator,
           const CollectiveOptions& options)
      : state_(state), whole_(whole), call_(communicator, options) {}

  Result<void> Run() {
    const Result<void> checked = CheckLocally();
    std::vector<uint64_t> agreed = {call_.options.buffer_bytes};
    agreed.insert(agreed.end(), call_.options.ranks_only.begin(), call_.options.ranks_only.end());
    CAIRN_TRY_ASSIGN(
        layout_, GlobalStateLayout::Exchange(call_.communicator, state_, leaves_, checked, agreed));
    CAIRN_TRY(FindTransfers());
    for (size_t i = 0; i < transfers_.size();) CAIRN_TRY(MoveBatch(i));
    return {};
  }

 private:
  // A tensor that some rank has to assemble.
  struct Transfer {
    const Entry* entry = nullptr;
    uint64_t length_bytes = 0;          // length of the global tensor
    std::optional<uint32_t> leaf = {};  // of the local state, if this rank has the key
  };

  Result<void> CheckLocally() {
    CAIRN_TRY(call_.CheckBuffer());
    CAIRN_TRY(ChooseReceivers());
    CAIRN_TRY_ASSIGN(leaves_, state_.Leaves());
    CAIRN_TRY(internal::CheckMemory(state_, leaves_));
    CAIRN_TRY(internal::CheckShardings(state_, leaves_, call_.rank));
    std::set<int> devices;
    internal::AddDevices(state_, devices);
    targets_.resize(leaves_.size());
    if (is_receiver_[call_.rank]) {
      CAIRN_TRY(FindTargets());
      internal::AddDevices(whole_.state(), devices);
    }
    CAIRN_TRY_ASSIGN(mover_, call_.MakeMover(devices));
    return {};
  }

  Result<void> ChooseReceivers() {
    is_receiver_.assign(call_.world_size, call_.options.ranks_only.empty());
    for (const int rank : call_.options.ranks_only) {
      if (rank < 0 || static_cast<uint32_t>(rank) >= call_.world_size) {
        return Fail(
            ErrorCode::kInvalidArgument,
            fmt::format("ranks_only names rank {}; there are {} ranks", rank, call_.world_size));
      }
      is_receiver_[static_cast<size_t>(rank)] = true;
    }
    return {};
  }

  Result<void> FindTargets() {
    const StateDict& whole = whole_.state();
    CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, whole.Leaves());
    CAIRN_TRY(internal::CheckMemory(whole, leaves));
    CAIRN_TRY_ASSIGN(const auto pairs, internal::PairTensors(whole, leaves, state_, leaves_));
    for (const auto& pair : pairs) {
      targets_[pair.shards] = whole_.Writable(whole.tensors[whole.slot[pair.whole]]);
    }
    for (uint32_t i = 0; i < leaves_.size(); ++i) {
      if (!IsTensor(state_.tree.nodes[leaves_[i].node].kind) || targets_[i]) continue;
      if (internal::FindSharding(state_, state_.slot[i]) == nullptr) continue;
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = "no memory is given for the gathered tensor",
                        .key = leaves_[i].fqn});
    }
    return {};
  }

  std::vector<uint32_t> ReceiversOf(const Entry& entry) const {
    std::vector<uint32_t> receivers = layout_->RanksWith(entry);
    std::erase_if(receivers, [&](uint32_t rank) { return !is_receiver_[rank]; });
    return receivers;
  }

  // Returns false if every receiver already has all elements, in one local tensor.
  bool NeedsTransfer(const Entry& entry) const {
    const auto receivers = ReceiversOf(entry);
    if (receivers.empty()) return false;
    if (entry.kind == Entry::Kind::kBoxes) return true;
    return std::ranges::any_of(receivers, [&](uint32_t rank) {
      const auto boxes = layout_->BoxesOf(entry, rank);
      return boxes.size() != 1 || boxes[0].sizes != entry.shape;
    });
  }

  // Finds the tensors that have to be sent, and copies the others.
  Result<void> FindTransfers() {
    std::vector<std::optional<uint32_t>> leaf_of(layout_->entries().size());
    for (uint32_t i = 0; i < leaves_.size(); ++i) {
      leaf_of[static_cast<size_t>(layout_->Find(leaves_[i].fqn))] = i;
    }
    for (size_t e = 0; e < layout_->entries().size(); ++e) {
      const Entry& entry = layout_->entries()[e];
      if (entry.kind == Entry::Kind::kWhole) continue;
      // Each rank that has the tensor has checked this.
      const uint64_t length_bytes = *TensorBytes(entry.dtype, entry.shape);
      if (length_bytes == 0) continue;
      if (NeedsTransfer(entry)) {
        transfers_.push_back({&entry, length_bytes, leaf_of[e]});
      } else if (leaf_of[e] && targets_[*leaf_of[e]]) {
        const TensorView& local = state_.tensors[state_.slot[*leaf_of[e]]];
        CAIRN_TRY(mover_.queues().Copy(local, *targets_[*leaf_of[e]]));
      }
    }
    return mover_.queues().Await();
  }

  // Returns which rank sends which boxes of a tensor. Replicas alternate from tensor to tensor.
  std::vector<Holding> HoldingsOf(const Entry& entry) const {
    std::vector<Holding> holdings;
    const auto add = [&](uint32_t rank) {
      auto boxes = layout_->BoxesOf(entry, rank);
      if (!boxes.empty()) holdings.push_back({rank, std::move(boxes)});
    };
    if (entry.kind == Entry::Kind::kBoxes) {
      for (uint32_t rank = 0; rank < call_.world_size; ++rank) add(rank);
      return holdings;
    }
    const auto turn = static_cast<size_t>(&entry - layout_->entries().data());
    for (const uint32_t rank : entry.mesh->ranks()) {
      const auto coordinate = *entry.mesh->CoordinateOf(rank);
      bool chosen = true;
      for (size_t m = 0; m < coordinate.size(); ++m) {
        if (entry.placements[m].kind != Placement::Kind::kReplicate) continue;
        chosen &= coordinate[m] == turn % entry.mesh->dims()[m].size;
      }
      if (chosen) add(rank);
    }
    return holdings;
  }

  // Adds what each rank sends of a tensor to the streams, which are by rank.
  void AddToStreams(const Transfer& transfer, std::vector<internal::PeerStream>& streams) {
    const Entry& entry = *transfer.entry;
    const bool receives = transfer.leaf && targets_[*transfer.leaf];
    for (const Holding& holding : HoldingsOf(entry)) {
      internal::PeerStream& stream = streams[holding.rank];
      for (const Box& box : holding.boxes) {
        stream.length_bytes += *TensorBytes(entry.dtype, box.sizes);
        if (receives) stream.target.Add(Narrow(*targets_[*transfer.leaf], box));
      }
      if (holding.rank != call_.rank) continue;
      const uint32_t tensor = state_.slot[*transfer.leaf];
      const auto shards = internal::ShardViewsHere(*internal::FindSharding(state_, tensor),
                                                   state_.tensors[tensor], call_.rank);
      CAIRN_CHECK(shards.has_value());  // CheckLocally has checked it
      for (const ShardView& shard : *shards) stream.source.Add(shard.view);
    }
  }

  // Moves the transfers from `next` on that have the same receivers and fit into one round
  // together. A transfer that is too large for a round is a batch of several rounds.
  Result<void> MoveBatch(size_t& next) {
    // Half of the buffer is for sent bytes and half for received ones. The range of a rank may be
    // one byte longer than its share.
    const uint64_t round_bytes = call_.options.buffer_bytes / 2 - call_.world_size;
    const auto& messages = transfers_[next].entry->messages;
    std::vector<internal::PeerStream> streams(call_.world_size);
    for (uint32_t rank = 0; rank < call_.world_size; ++rank) {
      streams[rank] = {.sender = rank, .receivers = ReceiversOf(*transfers_[next].entry)};
    }
    uint64_t total_bytes = 0;
    do {
      total_bytes += transfers_[next].length_bytes;
      AddToStreams(transfers_[next++], streams);
    } while (next < transfers_.size() && transfers_[next].entry->messages == messages &&
             total_bytes + transfers_[next].length_bytes <= round_bytes);
    return call_.Move(streams, total_bytes, round_bytes, mover_);
  }

  const StateDict& state_;
  const StateTarget whole_;
  const internal::CollectiveCall call_;
  std::vector<Leaf> leaves_;
  std::vector<std::optional<TensorTarget>> targets_;  // by leaf: memory for the complete tensor
  std::optional<GlobalStateLayout> layout_;
  std::vector<bool> is_receiver_;    // by rank
  std::vector<Transfer> transfers_;  // in the order of the layout, the same on all ranks
  internal::RoundMover mover_;
};

}  // namespace

Result<void> GatherStateDict(const StateDict& state, const StateTarget& whole,
                             Communicator& communicator, const CollectiveOptions& options) {
  return Gatherer(state, whole, communicator, options).Run();
}

}  // namespace cairn::core
