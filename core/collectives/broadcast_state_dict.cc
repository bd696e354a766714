// Broadcasting a full state into shards:
//   1. Everyone checks its part; manifests of the targets go round (GlobalStateLayout), which
//      votes.
//   2. Rank 0 describes its leaves, plain values included, to all.
//   3. Everyone plans and allocates its result; a vote.
//   4. Tensors go in batches, in rank 0's order. What a rank gets of a batch is one stream, its
//      boxes one after the other; a round moves the same share of each stream. Tensors that all
//      ranks hold whole go in batches of their own, by Broadcast.
// From step 2 on all ranks compute the same batches, streams and rounds.

#include "core/collectives/broadcast_state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "core/collectives/internal/global_state_layout.h"
#include "core/collectives/internal/shard_plan.h"
#include "core/ranks/internal/round_mover.h"
#include "core/ranks/status_agreement.h"
#include "core/state_dict/internal/leaves.h"
#include "core/state_dict/internal/state_devices.h"
#include "core/tensor/internal/tensor_stream.h"

namespace cairn::core {
namespace {

using internal::GlobalStateLayout;
using internal::TensorStream;

constexpr int kRoot = 0;

class Broadcaster {
 public:
  Broadcaster(const StateDict& full, const StateTarget& target, Communicator& communicator,
              const BroadcastOptions& options)
      : full_(full),
        target_(target.state()),
        communicator_(communicator),
        carrier_(options.tensor_communicator == nullptr ? communicator
                                                        : *options.tensor_communicator),
        options_(options),
        rank_(static_cast<uint32_t>(communicator.rank())),
        world_size_(static_cast<uint32_t>(communicator.world_size())) {}

  Result<HostState> Run() {
    const Result<void> checked = CheckLocally();
    const std::array<uint64_t, 3> agreed = {options_.buffer_bytes, options_.strict ? 1u : 0u,
                                            options_.cpu_offload ? 1u : 0u};
    CAIRN_TRY_ASSIGN(roster_, GlobalStateLayout::Exchange(communicator_, target_, target_leaves_,
                                                          checked, agreed));
    CAIRN_TRY(ShareDescription());
    const Result<void> planned = Plan();
    CAIRN_TRY(AgreeOnStatus(communicator_, planned));
    FindTransfers();
    for (size_t i = 0; i < transfers_.size();) CAIRN_TRY(MoveBatch(i));
    if (options_.report != nullptr) {
      report_.peak_buffer_bytes = mover_.peak_bytes();
      *options_.report = report_;
    }
    return std::move(plan_.result);
  }

 private:
  struct Transfer {
    size_t full_leaf = 0;
    const GlobalStateLayout::Entry* entry = nullptr;
    uint64_t length_bytes = 0;  // of what all ranks but the root get; by Broadcast: of the tensor
    bool whole_on_all = false;
  };

  bool is_root() const { return rank_ == kRoot; }

  Result<void> CheckLocally() {
    if (options_.buffer_bytes < 4 * uint64_t{world_size_}) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("a buffer of {} bytes for {} ranks; it takes at least 4 a rank",
                              options_.buffer_bytes, world_size_));
    }
    CAIRN_TRY_ASSIGN(target_leaves_, target_.Leaves());
    CAIRN_TRY(internal::CheckShardings(target_, target_leaves_, rank_));
    if (is_root()) {
      CAIRN_TRY_ASSIGN(described_, internal::DescribeFull(full_));
    }
    std::set<int> devices;
    internal::AddDevices(target_, devices);
    if (is_root()) internal::AddDevices(full_, devices);
    CAIRN_TRY_ASSIGN(mover_, internal::RoundMover::Make(carrier_, options_.buffer_bytes, devices,
                                                        options_.streams));
    return {};
  }

  Result<void> ShareDescription() {
    std::vector<std::byte> bytes;
    if (is_root()) bytes = internal::EncodeFull(described_);
    uint64_t length_bytes = bytes.size();
    CAIRN_TRY(communicator_.Broadcast(std::as_writable_bytes(std::span(&length_bytes, 1)), kRoot));
    bytes.resize(length_bytes);
    CAIRN_TRY(communicator_.Broadcast(bytes, kRoot));
    if (!is_root()) {
      CAIRN_TRY_ASSIGN(described_, internal::DecodeFull(bytes));
    }
    return {};
  }

  Result<void> Plan() {
    CAIRN_TRY_ASSIGN(plan_,
                     internal::PlanShards(described_, target_, target_leaves_, rank_, options_));
    return {};
  }

  std::vector<Box> BoxesOf(const Transfer& transfer, uint32_t rank) const {
    if (!roster_->Has(*transfer.entry, rank)) return {};
    if (transfer.entry->kind != GlobalStateLayout::Entry::Kind::kWhole) {
      return roster_->BoxesOf(*transfer.entry, rank);
    }
    return {WholeBox(described_[transfer.full_leaf].shape)};
  }

  void FindTransfers() {
    for (size_t i = 0; i < described_.size(); ++i) {
      const internal::FullLeaf& leaf = described_[i];
      const int64_t entry = roster_->Find(leaf.fqn);
      if (!IsTensor(leaf.kind) || entry < 0) continue;
      Transfer transfer{.full_leaf = i, .entry = &roster_->entries()[static_cast<size_t>(entry)]};
      // Each rank that has the key has compared dtype and shape with its own.
      const uint64_t tensor_bytes = *TensorBytes(leaf.dtype, leaf.shape);
      if (tensor_bytes == 0) continue;
      transfer.whole_on_all = true;
      for (uint32_t rank = 0; rank < world_size_; ++rank) {
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

  // Streams of a batch: on the root what each rank gets, elsewhere where it goes.
  struct Batch {
    std::vector<TensorStream<TensorView>> sources;  // by rank; by Broadcast: the first one
    std::vector<uint64_t> lengths;                  // by rank
    TensorStream<TensorTarget> mine;
    uint64_t total_bytes = 0;
  };

  // Pieces of this rank's result; none if it lacks the key.
  std::vector<internal::FillPiece> MyPieces(const Transfer& transfer) {
    const auto fill = std::ranges::lower_bound(plan_.fills, transfer.full_leaf, {},
                                               &internal::ShardPlan::Fill::full_leaf);
    if (fill == plan_.fills.end() || fill->full_leaf != transfer.full_leaf) return {};
    return internal::ShardViewsToFill(plan_, *fill, rank_);
  }

  Result<void> AddToBatch(const Transfer& transfer, Batch& batch) {
    batch.total_bytes += transfer.length_bytes;
    if (!is_root()) {
      for (internal::FillPiece& piece : MyPieces(transfer)) batch.mine.Add(std::move(piece.target));
    }
    const internal::FullLeaf& leaf = described_[transfer.full_leaf];
    for (uint32_t rank = 1; rank < world_size_; ++rank) {
      for (const Box& box : BoxesOf(transfer, rank)) {
        batch.lengths[rank] += *TensorBytes(leaf.dtype, box.sizes);
      }
    }
    if (!is_root()) return {};
    const TensorView& whole = full_.tensors[full_.slot[transfer.full_leaf]];
    for (const internal::FillPiece& piece : MyPieces(transfer)) {
      CAIRN_TRY(mover_.queues().Copy(Narrow(whole, piece.box), piece.target));
    }
    if (transfer.whole_on_all) {
      batch.sources[0].Add(whole);
      return {};
    }
    for (uint32_t rank = 1; rank < world_size_; ++rank) {
      for (const Box& box : BoxesOf(transfer, rank)) {
        batch.sources[rank].Add(Narrow(whole, box));
      }
    }
    return {};
  }

  // Moves the transfers from `next` on that go together in one round. One that is too large for a
  // round goes alone, in several.
  Result<void> MoveBatch(size_t& next) {
    // A range may be a byte longer than its share.
    const uint64_t round_bytes = options_.buffer_bytes - world_size_;
    const bool by_broadcast = transfers_[next].whole_on_all;
    Batch batch;
    batch.sources.resize(world_size_);
    batch.lengths.resize(world_size_);
    do {
      CAIRN_TRY(AddToBatch(transfers_[next++], batch));
    } while (next < transfers_.size() && transfers_[next].whole_on_all == by_broadcast &&
             batch.total_bytes + transfers_[next].length_bytes <= round_bytes);
    // Nobody else gets anything, so no round ends the root's own copies.
    if (world_size_ == 1 || batch.total_bytes == 0) return mover_.queues().Await();
    const uint64_t rounds = (batch.total_bytes + round_bytes - 1) / round_bytes;
    for (uint64_t round = 0; round < rounds; ++round) {
      mover_.Begin();
      ++report_.round_count;
      CAIRN_TRY(by_broadcast ? BroadcastRound(batch, round, rounds)
                             : ScatterRound(batch, round, rounds));
    }
    return {};
  }

  Result<void> BroadcastRound(const Batch& batch, uint64_t round, uint64_t rounds) {
    const auto [begin, count] = internal::RangeOfRound(batch.total_bytes, round, rounds);
    ByteTarget bytes;
    if (is_root()) {
      // The communicator may write to the root's range too, so it never gets the full state's
      // memory.
      CAIRN_TRY_ASSIGN(bytes, mover_.Pack(batch.sources[0], begin, count));
    } else {
      bytes = mover_.Target(batch.mine, begin, count);
    }
    CAIRN_TRY(mover_.Packed());
    CAIRN_TRY(carrier_.Broadcast(bytes, kRoot));
    (is_root() ? report_.sent_bytes : report_.received_bytes) += count;
    return mover_.Unpack();
  }

  Result<void> ScatterRound(const Batch& batch, uint64_t round, uint64_t rounds) {
    std::vector<ByteView> sent(world_size_);
    if (is_root()) {
      std::vector<ByteView> in_place;
      for (uint32_t rank = 1; rank < world_size_; ++rank) {
        const auto [begin, count] = internal::RangeOfRound(batch.lengths[rank], round, rounds);
        if (count == 0) continue;
        report_.sent_bytes += count;
        const auto there = mover_.InPlace(batch.sources[rank], begin, count);
        // Ranges of one call may not overlap, and replicas ask for the same bytes.
        if (there && std::ranges::none_of(in_place, [&](ByteView other) {
              return there->data() < other.data() + other.size() &&
                     other.data() < there->data() + count;
            })) {
          sent[rank] = in_place.emplace_back(*there);
          continue;
        }
        CAIRN_TRY_ASSIGN(sent[rank], mover_.Pack(batch.sources[rank], begin, count));
      }
      CAIRN_TRY(mover_.Packed());
      return carrier_.Scatter(sent, {}, kRoot);
    }
    const auto [begin, count] = internal::RangeOfRound(batch.lengths[rank_], round, rounds);
    const ByteTarget bytes = mover_.Target(batch.mine, begin, count);
    CAIRN_TRY(mover_.Packed());
    CAIRN_TRY(carrier_.Scatter({}, bytes, kRoot));
    report_.received_bytes += count;
    return mover_.Unpack();
  }

  const StateDict& full_;  // of rank 0
  StateDict& target_;
  Communicator& communicator_;
  Communicator& carrier_;  // of tensors
  const BroadcastOptions& options_;
  const uint32_t rank_;
  const uint32_t world_size_;
  std::vector<Leaf> target_leaves_;
  std::vector<internal::FullLeaf> described_;  // rank 0's leaves
  std::optional<GlobalStateLayout> roster_;    // of the targets
  internal::ShardPlan plan_;
  std::vector<Transfer> transfers_;  // in rank 0's order, the same on all ranks
  internal::RoundMover mover_;       // goes before the plan, whose result it may still write
  TransferReport report_;
};

}  // namespace

Result<HostState> BroadcastStateDict(const StateDict& full, const StateTarget& target,
                                     Communicator& communicator, const BroadcastOptions& options) {
  return Broadcaster(full, target, communicator, options).Run();
}

}  // namespace cairn::core
