// Gathers shards:
//   1. Every rank checks its state. The ranks agree on the status, and exchange layout messages
//      (GlobalStateLayout).
//   2. Receivers allocate the result. The ranks agree on the status.
//   3. Tensors are sent in batches, in the order of the layout. One rank is chosen to send each
//      element of a tensor. The bytes that a rank sends of a batch are one stream, its boxes one
//      after the other; a round moves the same share of each stream to the receivers.
// After step 1 all ranks compute the same batches, streams and rounds.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "core/collectives/internal/collective_call.h"
#include "core/collectives/internal/global_state_layout.h"
#include "core/collectives/state_dict_collectives.h"
#include "core/ranks/internal/round_mover.h"
#include "core/ranks/status_agreement.h"
#include "core/state_dict/internal/leaves.h"
#include "core/tensor/internal/tensor_stream.h"

namespace cairn::core {
namespace {

using internal::GlobalStateLayout;
using Entry = GlobalStateLayout::Entry;

Result<void> CheckReceivers(const GatherOptions& options, int world_size) {
  for (const int rank : options.ranks_only) {
    if (rank >= 0 && rank < world_size) continue;
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("ranks_only names rank {}; there are {} ranks", rank, world_size));
  }
  return {};
}

// The boxes of a tensor that one rank sends.
struct Holding {
  uint32_t rank = 0;
  std::vector<Box> boxes;  // in the order of ShardViewsHere
};

class Gatherer {
 public:
  Gatherer(const StateDict& state, Communicator& communicator, const GatherOptions& options)
      : state_(state), call_(communicator, options), options_(options) {}

  Result<HostState> Run() {
    const Result<void> checked = CheckLocally();
    std::vector<uint64_t> agreed = {options_.buffer_bytes};
    agreed.insert(agreed.end(), options_.ranks_only.begin(), options_.ranks_only.end());
    CAIRN_TRY_ASSIGN(
        layout_, GlobalStateLayout::Exchange(call_.communicator, state_, leaves_, checked, agreed));
    ChooseReceivers();
    const Result<void> planned = PlanResult();
    CAIRN_TRY(AgreeOnStatus(call_.communicator, planned));
    CAIRN_TRY(CopyWhole());
    for (size_t i = 0; i < transfers_.size();) CAIRN_TRY(MoveBatch(i));
    call_.Report(report_, mover_);
    return std::move(result_);
  }

 private:
  // A tensor that some rank has to assemble.
  struct Transfer {
    const Entry* entry = nullptr;
    uint64_t length_bytes = 0;            // length of the global tensor
    std::optional<uint32_t> tensor = {};  // in the local state, if this rank has the key
  };

  Result<void> CheckLocally() {
    CAIRN_TRY(call_.CheckBuffer());
    CAIRN_TRY(CheckReceivers(options_, call_.communicator.world_size()));
    CAIRN_TRY_ASSIGN(leaves_, state_.Leaves());
    CAIRN_TRY(internal::CheckMemory(state_, leaves_));
    CAIRN_TRY(internal::CheckShardings(state_, leaves_, call_.rank));
    std::set<int> devices;
    internal::AddDevices(state_, devices);
    for (const auto& [fqn, target] : options_.targets) {
      if (target.device != kHostDevice) devices.insert(target.device);
    }
    CAIRN_TRY_ASSIGN(mover_, call_.MakeMover(devices));
    return {};
  }

  void ChooseReceivers() {
    is_receiver_.assign(call_.world_size, options_.ranks_only.empty());
    for (const int rank : options_.ranks_only) is_receiver_[static_cast<size_t>(rank)] = true;
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

  Result<void> PlanResult() {
    std::vector<std::optional<uint32_t>> local(layout_->entries().size());
    for (uint32_t i = 0; i < leaves_.size(); ++i) {
      if (!IsTensor(state_.tree.nodes[leaves_[i].node].kind)) continue;
      local[static_cast<size_t>(layout_->Find(leaves_[i].fqn))] = state_.slot[i];
    }
    StateDict gathered = state_;
    gathered.shardings.clear();
    std::vector<bool> owned(state_.tensors.size(), options_.cpu_offload);
    is_given_.resize(state_.tensors.size());
    for (size_t e = 0; e < layout_->entries().size(); ++e) {
      const Entry& entry = layout_->entries()[e];
      if (entry.kind == Entry::Kind::kWhole) continue;
      // Each rank that has the tensor has checked this.
      const uint64_t length_bytes = *TensorBytes(entry.dtype, entry.shape);
      const bool moves = length_bytes > 0 && NeedsTransfer(entry);
      if (moves) transfers_.push_back({&entry, length_bytes, local[e]});
      if (local[e] && is_receiver_[call_.rank]) {
        CAIRN_TRY_ASSIGN(is_given_[*local[e]], TakeTarget(entry, gathered.tensors[*local[e]]));
        owned[*local[e]] = owned[*local[e]] && !is_given_[*local[e]];
        if (is_given_[*local[e]]) continue;
      }
      if (!local[e] || (!moves && length_bytes > 0)) continue;
      gathered.tensors[*local[e]] = {
          .dtype = entry.dtype, .shape = entry.shape, .device = DeviceOf(*local[e])};
      owned[*local[e]] = true;
    }
    if (options_.cpu_offload) {
      for (size_t i = 0; i < gathered.tensors.size(); ++i) {
        if (!is_given_[i]) gathered.tensors[i].device = kHostDevice;
      }
    }
    if (!is_receiver_[call_.rank]) return {};
    CAIRN_TRY_ASSIGN(result_, HostState::Allocate(std::move(gathered), options_.memory, &owned));
    return {};
  }

  // If the caller provides memory for the gathered tensor, sets `view` to it and returns true.
  Result<bool> TakeTarget(const Entry& entry, TensorView& view) const {
    const auto found = options_.targets.find(entry.fqn);
    if (found == options_.targets.end()) return false;
    const TensorTarget& target = found->second;
    if (target.dtype != entry.dtype || target.shape != entry.shape) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message = "the memory given for it has another dtype or shape",
                        .key = entry.fqn});
    }
    view = {target.dtype, target.shape, target.strides, target.data, target.device};
    return true;
  }

  // The device of a tensor, or of the parts that it consists of.
  int DeviceOf(uint32_t tensor) const {
    int device = kHostDevice;
    internal::ForEachMemory(state_, tensor, [&](const TensorView& view) { device = view.device; });
    return device;
  }

  // Copies tensors that need no other rank: to memory of the caller, or with cpu_offload.
  Result<void> CopyWhole() {
    if (!is_receiver_[call_.rank]) return {};
    std::vector<bool> moves(state_.tensors.size());
    for (const Transfer& transfer : transfers_) {
      if (transfer.tensor) moves[*transfer.tensor] = true;
    }
    for (uint32_t i = 0; i < state_.tensors.size(); ++i) {
      const TensorView& view = result_.state().tensors[i];
      if (!options_.cpu_offload && !is_given_[i]) continue;
      if (!moves[i] && state_.tensors[i].shape == view.shape) {
        CAIRN_TRY(mover_.queues().Copy(state_.tensors[i], result_.target().Writable(view)));
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
    const bool receives = transfer.tensor && is_receiver_[call_.rank];
    TensorTarget whole;
    if (receives) {
      whole = result_.target().Writable(result_.state().tensors[*transfer.tensor]);
    }
    for (const Holding& holding : HoldingsOf(entry)) {
      internal::PeerStream& stream = streams[holding.rank];
      for (const Box& box : holding.boxes) {
        stream.length_bytes += *TensorBytes(entry.dtype, box.sizes);
        if (receives) stream.target.Add(Narrow(whole, box));
      }
      if (holding.rank != call_.rank) continue;
      const auto shards =
          internal::ShardViewsHere(*internal::FindSharding(state_, *transfer.tensor),
                                   state_.tensors[*transfer.tensor], call_.rank);
      CAIRN_CHECK(shards.has_value());  // CheckLocally has checked it
      for (const ShardView& shard : *shards) stream.source.Add(shard.view);
    }
  }

  // Moves the transfers from `next` on that have the same receivers and fit into one round
  // together. A transfer that is too large for a round is a batch of several rounds.
  Result<void> MoveBatch(size_t& next) {
    // Half of the buffer is for sent bytes and half for received ones. The range of a rank may be
    // one byte longer than its share.
    const uint64_t round_bytes = options_.buffer_bytes / 2 - call_.world_size;
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
    return call_.Move(streams, total_bytes, round_bytes, mover_, report_);
  }

  const StateDict& state_;
  const internal::CollectiveCall call_;
  const GatherOptions& options_;
  std::vector<Leaf> leaves_;
  std::optional<GlobalStateLayout> layout_;
  std::vector<bool> is_receiver_;    // by rank
  std::vector<uint8_t> is_given_;    // by tensor of the state: the caller provides the memory
  std::vector<Transfer> transfers_;  // in the order of the layout, the same on all ranks
  HostState result_;
  // Destroyed before the result, because after an error it may still write to it.
  internal::RoundMover mover_;
  TransferReport report_;
};

}  // namespace

Result<HostState> GatherStateDict(const StateDict& state, Communicator& communicator,
                                  const GatherOptions& options) {
  return Gatherer(state, communicator, options).Run();
}

}  // namespace cairn::core
