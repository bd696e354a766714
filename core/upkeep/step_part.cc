// Portions are planned and written one by one; each Add waits until nothing of its portion is read
// any more. Rank 0 then merges what all ranks have written, as in every save of a multi-rank store,
// and nests the tree.

#include "core/upkeep/step_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "core/save/internal/device_save.h"
#include "core/save/internal/rank_merge.h"
#include "core/save/internal/save.h"
#include "core/save/internal/save_planner.h"
#include "core/state_dict/internal/tree_merge.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/catch_exhaustion.h"
#include "kv/base/key.h"
#include "kv/io/worker_pool.h"
#include "kv/step_writer.h"

namespace cairn::core {
namespace {

// Makes each tensor without a sharding one with a single explicit box: unlike in
// CheckpointStore::Save, other ranks do not have it.
void SetExplicitBoxes(StateDict& portion) {
  for (uint32_t i = 0; i < portion.tensors.size(); ++i) {
    if (portion.shardings.contains(i)) continue;
    TensorView& view = portion.tensors[i];
    Sharding sharding{.global_shape = view.shape, .mesh = nullptr, .placements = {}, .parts = {}};
    sharding.parts.push_back({.box = WholeBox(view.shape), .view = view});
    view.data = nullptr;
    view.device = kHostDevice;
    portion.shardings.emplace(i, std::move(sharding));
  }
}

// Returns a tree with the containers along `path` and, at its end, the subtree of nodes [at, end).
StateTree ChainTo(const StateTree& tree, size_t at, size_t end, std::span<const PathElement> path) {
  StateTree chain;
  chain.nodes.push_back(tree.nodes.front());
  chain.nodes.front().child_count = 1;
  for (size_t i = 0; i < path.size(); ++i) {
    Node node{.kind = NodeKind::kDict,
              .key_kind = path[i].is_position ? KeyKind::kIndex : KeyKind::kString,
              .key = path[i].text,
              .child_count = 1};
    if (i + 1 < path.size()) {
      node.kind = path[i + 1].is_position ? NodeKind::kList : NodeKind::kDict;
      chain.nodes.push_back(std::move(node));
      continue;
    }
    chain.nodes.push_back(tree.nodes[at]);
    if (path.size() == 1) continue;  // its key, with the form that goes with the kind
    chain.nodes.back().key_kind = node.key_kind;
    chain.nodes.back().key = std::move(node.key);
    chain.nodes.back().form = KeyForm::kPlain;
  }
  chain.nodes.insert(chain.nodes.end(), tree.nodes.begin() + static_cast<ptrdiff_t>(at) + 1,
                     tree.nodes.begin() + static_cast<ptrdiff_t>(end));
  return chain;
}

// Returns the end of the subtree that begins at `at`.
size_t EndOf(const StateTree& tree, size_t at) {
  size_t open = 1;
  while (open > 0) open = open - 1 + tree.nodes[at++].child_count;
  return at;
}

// Returns whether a leaf has the same FQN at the end of `path` as with the one key of `node`.
bool IsSameFqn(std::span<const PathElement> path, const Node& node) {
  std::string fqn;
  for (const PathElement& element : path) {
    if (&element != path.data()) fqn += '.';
    AppendName({.key_kind = KeyKind::kString, .key = element.text}, fqn);
  }
  return !path.empty() && fqn == NameOf(node);
}

}  // namespace

Result<StateTree> NestTree(const StateTree& tree,
                           const std::map<std::string, std::vector<PathElement>>& paths) {
  if (tree.nodes.empty()) return Fail(ErrorCode::kInvalidArgument, "a tree without a root");
  internal::TreeMerge merge;
  StateTree root;
  root.nodes.push_back(tree.nodes.front());
  root.nodes.front().child_count = 0;
  CAIRN_TRY(merge.Add(root));
  for (size_t at = 1; at < tree.nodes.size();) {
    const size_t end = EndOf(tree, at);
    const std::string& key = tree.nodes[at].key;
    const auto found = paths.find(key);
    const bool is_nested = found != paths.end() && IsSameFqn(found->second, tree.nodes[at]);
    const PathElement unnested[] = {{.text = key}};
    CAIRN_TRY(merge.Add(ChainTo(
        tree, at, end, is_nested ? std::span<const PathElement>(found->second) : unnested)));
    at = end;
  }
  return merge.Take();
}

class StepPart::Impl {
 public:
  Impl(CheckpointStore& store, StepTicket ticket, uint32_t rank, SaveOptions options,
       internal::SaveSession session)
      : store_(store),
        ticket_(std::move(ticket)),
        self_{.rank = rank, .world_size = ticket_.world_size},
        options_(std::move(options)),
        session_(std::move(session)) {}

  Result<void> Add(StateDict portion, std::span<const DeviceStream> streams) {
    if (failure_) return Fail(*failure_);
    has_portion_ = true;
    auto added =
        kv::CatchExhaustion("a part of a step", [&] { return Write(std::move(portion), streams); });
    if (!added) {
      failure_ = added.error();
      session_.reset();  // waits until nothing reads the portion
      device_.reset();
    }
    return added;
  }

  Result<SaveReport> Prepare() {
    CAIRN_TRY(FinishPortions());
    CAIRN_TRY(session_->writer().Prepare(
        {.base_step = session_->base_step(), .logical_bytes = session_->report().logical_bytes}));
    return session_->report();
  }

  Result<SaveReport> Commit(const StepFrame& frame) {
    CAIRN_TRY(FinishPortions());
    return kv::CatchExhaustion("the records of a step", [&] { return CommitAll(frame); });
  }

  void Abort(const Error& error) {
    if (self_.world_size == 1) return;
    // Best effort: the front end reports the error too.
    (void)store_.kv().FailAttempt(ticket_.attempt, self_.rank, error);
  }

 private:
  Result<void> FinishPortions() {
    if (!has_portion_) CAIRN_TRY(Add(StateDict(), {}));
    return failure_ ? Result<void>(Fail(*failure_)) : Result<void>();
  }

  Result<void> Write(StateDict portion, std::span<const DeviceStream> streams) {
    if (self_.world_size > 1) SetExplicitBoxes(portion);
    CAIRN_TRY_ASSIGN(internal::SavePlan plan, internal::PlanSave(portion, options_, self_));
    const bool on_device = internal::DeviceSave::IsNeeded(plan);
    if (on_device) CAIRN_TRY(DigestOnDevices(plan, streams));
    CAIRN_TRY(session_->Write(plan, options_, pool_));
    if (on_device) CAIRN_TRY(device_->MarkStaged());
    CAIRN_TRY(session_->writer().Drain());
    if (on_device) CAIRN_TRY(device_->staged_point()->Await());
    if (self_.rank != 0) return {};
    return merge_.AddOwn(plan);
  }

  Result<void> DigestOnDevices(internal::SavePlan& plan, std::span<const DeviceStream> streams) {
    if (device_ == nullptr) {
      CAIRN_TRY_ASSIGN(device_, internal::DeviceSave::Begin(plan, streams));
      CAIRN_TRY(session_->UseDevice(*device_));
    } else {
      CAIRN_TRY(device_->BeginNextPlan(plan, streams));
    }
    return device_->Digest(plan, nullptr);
  }

  Result<SaveReport> CommitAll(const StepFrame& frame) {
    kv::StepWriter& writer = session_->writer();
    if (self_.world_size > 1) CAIRN_TRY(writer.Gather(merge_));
    CAIRN_TRY_ASSIGN(internal::MergedStep merged, merge_.Finish());
    CAIRN_TRY(session_->WriteLongValues(merged, options_, pool_));
    if (self_.world_size > 1) {
      for (const TensorInfo& tensor : merged.tensors) {
        CAIRN_TRY(writer.AddRecord(kv::Column::kTensors, kv::FqnKey(tensor.fqn),
                                   internal::EncodeTensor(tensor)));
      }
    }
    for (const auto& [fqn, record] : merged.values) {
      CAIRN_TRY(writer.AddRecord(kv::Column::kValues, kv::FqnKey(fqn), record));
    }
    auto nested = NestTree(merged.tree, frame.paths);
    CAIRN_TRY(writer.SetStructure(EncodeTree(nested ? *nested : merged.tree, frame.extensions)));
    CAIRN_TRY(writer.Commit({.base_step = session_->base_step(),
                             .tensor_count = merged.tensor_count,
                             .value_count = merged.values.size(),
                             .logical_bytes = merged.logical_bytes}));
    return session_->report();
  }

  CheckpointStore& store_;
  const StepTicket ticket_;
  const internal::RankInWorld self_;
  const SaveOptions options_;
  kv::WorkerPool pool_{kv::WorkerThreads()};
  // Null until a portion has tensors in device memory. Declared before the session, which uses it.
  std::unique_ptr<internal::DeviceSave> device_;
  std::optional<internal::SaveSession> session_;  // empty after a failure
  std::optional<Error> failure_;                  // error of the first Add that failed
  internal::RankMerge merge_;                     // rank 0
  bool has_portion_ = false;
};

StepPart::StepPart(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StepPart::~StepPart() = default;

Result<StepTicket> StepPart::OpenSession(CheckpointStore& store, uint64_t step,
                                         uint32_t world_size) {
  StepTicket ticket{.step = step, .world_size = world_size, .session = {}, .attempt = {}};
  if (world_size > 1) {
    CAIRN_TRY_ASSIGN(ticket.session, store.kv().OpenSession());
  }
  ticket.attempt = store.kv().NextAttempt(step);
  return ticket;
}

Result<std::unique_ptr<StepPart>> StepPart::Begin(CheckpointStore& store, const StepTicket& ticket,
                                                  uint32_t rank, const SaveOptions& options) {
  using Clock = std::chrono::steady_clock;
  if (rank >= ticket.world_size) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("rank {} of {} ranks", rank, ticket.world_size));
  }
  const auto now = Clock::now();
  const auto most = std::chrono::floor<std::chrono::milliseconds>(Clock::time_point::max() - now);
  const internal::SaveAttempt attempt{
      .step = ticket.step,
      .name = ticket.attempt,
      .deadline = now + std::clamp(options.deadline, std::chrono::milliseconds(0), most)};
  const internal::RankInWorld self{.rank = rank, .world_size = ticket.world_size};
  CAIRN_TRY_ASSIGN(internal::SaveSession session,
                   internal::SaveSession::Begin(store.kv(), attempt, self, options, store.rates()));
  return std::unique_ptr<StepPart>(
      new StepPart(std::make_unique<Impl>(store, ticket, rank, options, std::move(session))));
}

Result<void> StepPart::Add(StateDict portion, std::span<const DeviceStream> streams) {
  return impl_->Add(std::move(portion), streams);
}
Result<SaveReport> StepPart::Prepare() { return impl_->Prepare(); }
Result<SaveReport> StepPart::Commit(const StepFrame& frame) { return impl_->Commit(frame); }
void StepPart::Abort(const Error& error) { impl_->Abort(error); }

}  // namespace cairn::core
