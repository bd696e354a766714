#include "core/checkpoint_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "core/inspect/internal/compare.h"
#include "core/inspect/internal/find_statistics.h"
#include "core/inspect/internal/list.h"
#include "core/inspect/internal/measure_space.h"
#include "core/inspect/internal/verify.h"
#include "core/load/internal/load.h"
#include "core/load/map.h"
#include "core/ranks/internal/open_together.h"
#include "core/rewrite/internal/edit.h"
#include "core/rewrite/internal/merge.h"
#include "core/save/internal/device_save.h"
#include "core/save/internal/plan_cache.h"
#include "core/save/internal/save.h"
#include "core/save/internal/save_planner.h"
#include "core/save/internal/save_queue.h"
#include "core/save/internal/saved_chunks.h"
#include "core/step/internal/compress.h"
#include "core/step/internal/delta_chain.h"
#include "core/step/internal/lookup.h"
#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"
#include "kv/base/thread_annotations.h"
#include "kv/compact.h"
#include "kv/io/worker_pool.h"

namespace cairn::core {

class CheckpointStore::Impl {
 public:
  Impl(std::unique_ptr<kv::Store> store, Communicator* communicator)
      : store_(std::move(store)), communicator_(communicator) {
    if (communicator == nullptr) return;
    self_ = {.rank = static_cast<uint32_t>(communicator->rank()),
             .world_size = static_cast<uint32_t>(communicator->world_size())};
  }

  kv::Store& store() const { return *store_; }
  const internal::RankInWorld& self() const { return self_; }
  Communicator* communicator() const { return communicator_; }
  internal::TreeCache& trees() { return trees_; }

  internal::SaveAttempt NextAttempt(uint64_t step, const SaveOptions& options) {
    internal::SaveAttempt attempt{.step = step, .name = {}};
    if (self_.world_size == 1) return attempt;
    attempt.queue_position = queue_.Enter([&] { attempt.name = store_->NextAttempt(step); });
    const auto now = std::chrono::steady_clock::now();
    const auto most = std::chrono::floor<std::chrono::milliseconds>(
        std::chrono::steady_clock::time_point::max() - now);
    const auto deadline = std::clamp(options.deadline, std::chrono::milliseconds(0), most / 2);
    attempt.deadline = now + deadline;
    attempt.decision_deadline = attempt.deadline + deadline / 4 + std::chrono::seconds(1);
    return attempt;
  }

  Error Abort(const internal::SaveAttempt& attempt, Error error) {
    if (attempt.name.empty()) return error;
    // If this file cannot be written either, the other ranks fail at their deadline.
    (void)store_->FailAttempt(attempt.name, self_.rank, error);
    queue_.Leave(attempt.queue_position);
    return error;
  }

  Result<SaveReport> SavePlanned(const internal::SaveAttempt& attempt, internal::SavePlan& plan,
                                 const SaveOptions& options, internal::SavedChunks* saved,
                                 internal::DeviceSave* device, bool has_same_records = false) {
    if (auto is_free = CheckNotNested(); !is_free) return Fail(Abort(attempt, is_free.error()));
    if (!attempt.name.empty()) queue_.AwaitTurn(attempt.queue_position);
    const MutexLock lock(writing_);
    const Writing writing(*this);
    std::unique_ptr<kv::WorkerPool>* const pool = &pool_;  // used under the lock
    auto report = kv::CatchExhaustion("the records of a save", [&] {
      MakePool(*pool);
      return internal::RunSave(plan, {.store = *store_,
                                      .attempt = attempt,
                                      .self = self_,
                                      .options = options,
                                      .pool = **pool,
                                      .saved = saved,
                                      .has_same_records = has_same_records,
                                      .device = device});
    });
    if (!report) return Fail(Abort(attempt, std::move(report).error()));
    if (!attempt.name.empty()) queue_.Leave(attempt.queue_position);
    return report;
  }

  std::unique_ptr<internal::LastSave> TakeLastSave() {
    const MutexLock lock(remembering_);
    return last_save_ ? std::move(last_save_) : std::make_unique<internal::LastSave>();
  }
  void RememberSave(std::unique_ptr<internal::LastSave> save) {
    const MutexLock lock(remembering_);
    last_save_ = std::move(save);
  }

  Result<kv::Store::DeleteReport> Delete(std::span<const uint64_t> steps, bool dry_run) {
    CAIRN_TRY(CheckNotNested());
    const MutexLock lock(writing_);
    return store_->Delete(steps, dry_run);
  }

  Result<kv::StepInfo> Edit(uint64_t source, uint64_t into, const StepEdit& edit) {
    CAIRN_TRY(CheckNotNested());
    const MutexLock lock(writing_);
    return kv::CatchExhaustion("the records of a step",
                               [&] { return internal::RunEdit(*store_, source, into, edit); });
  }

  Result<MergeReport> Merge(std::span<const uint64_t> steps, uint64_t into,
                            const MergeOptions& options) {
    CAIRN_TRY(CheckNotNested());
    const MutexLock lock(writing_);
    const Writing writing(*this);
    std::unique_ptr<kv::WorkerPool>* const pool = &pool_;  // used under the lock
    return kv::CatchExhaustion("a merge", [&] {
      MakePool(*pool);
      return internal::RunMerge(*store_, steps, into, options, **pool);
    });
  }

  Result<void> Close() {
    CAIRN_TRY(CheckNotNested());
    const MutexLock lock(writing_);
    // Rank 0 removes the files from which the others learn the outcome of their last save, so all
    // ranks must have read them.
    Result<void> all_done = {};
    if (communicator_ != nullptr && !closed_) all_done = communicator_->Barrier();
    closed_ = true;
    Result<void> closed = store_->Close();
    return closed ? all_done : closed;
  }

 private:
  /// While it exists, this thread is in a call that reports its progress and holds writing_.
  class Writing {
   public:
    explicit Writing(Impl& impl) : impl_(impl) { impl_.writer_ = std::this_thread::get_id(); }
    ~Writing() { impl_.writer_ = std::thread::id(); }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    Impl& impl_;
  };

  Result<void> CheckNotNested() const {
    if (writer_ != std::this_thread::get_id()) return {};
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "this thread is in a call that changes the store: the function "
                                 "that follows its progress must not change the store",
                      .file = store_->directory()});
  }

  static void MakePool(std::unique_ptr<kv::WorkerPool>& pool) {
    if (pool != nullptr) return;
    pool = std::make_unique<kv::WorkerPool>(kv::WorkerThreads());
  }

  std::unique_ptr<kv::Store> store_;
  Communicator* const communicator_;  // null: one process alone
  internal::RankInWorld self_;
  internal::TreeCache trees_;
  internal::SaveQueue queue_;            // for a multi-rank store
  std::atomic<std::thread::id> writer_;  // the thread of Writing
  Mutex writing_;                        // held during all of a save, a deletion and the close
  bool closed_ CAIRN_GUARDED_BY(writing_) = false;
  std::unique_ptr<kv::WorkerPool> pool_ CAIRN_GUARDED_BY(writing_);  // set by the first save
  Mutex remembering_;
  std::unique_ptr<internal::LastSave> last_save_ CAIRN_GUARDED_BY(remembering_);  // may be null
};

CheckpointStore::CheckpointStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointStore::~CheckpointStore() = default;

Result<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const std::string& address,
                                                               kv::OpenMode mode,
                                                               kv::StoreOptions options) {
  CAIRN_TRY_ASSIGN(auto store, kv::Store::Open(address, mode, std::move(options)));
  return std::unique_ptr<CheckpointStore>(
      new CheckpointStore(std::make_unique<Impl>(std::move(store), nullptr)));
}

Result<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(std::shared_ptr<kv::Storage> storage,
                                                               kv::OpenMode mode,
                                                               kv::StoreOptions options) {
  CAIRN_TRY_ASSIGN(auto store, kv::Store::Open(std::move(storage), mode, std::move(options)));
  return std::unique_ptr<CheckpointStore>(
      new CheckpointStore(std::make_unique<Impl>(std::move(store), nullptr)));
}

Result<std::unique_ptr<CheckpointStore>> CheckpointStore::OpenShared(const std::string& address,
                                                                     kv::OpenMode mode,
                                                                     Communicator& communicator,
                                                                     kv::StoreOptions options) {
  CAIRN_TRY_ASSIGN(auto store,
                   internal::OpenTogether(address, mode, communicator, std::move(options)));
  return std::unique_ptr<CheckpointStore>(
      new CheckpointStore(std::make_unique<Impl>(std::move(store), &communicator)));
}

uint32_t CheckpointStore::rank() const { return impl_->self().rank; }
uint32_t CheckpointStore::world_size() const { return impl_->self().world_size; }
internal::RankInWorld CheckpointStore::rank_in_world() const { return impl_->self(); }

internal::SaveAttempt CheckpointStore::NextAttempt(uint64_t step, const SaveOptions& options) {
  return impl_->NextAttempt(step, options);
}

Error CheckpointStore::Abort(const internal::SaveAttempt& attempt, Error error) {
  return impl_->Abort(attempt, std::move(error));
}

kv::Store& CheckpointStore::kv() const { return impl_->store(); }

Result<std::vector<kv::StepInfo>> CheckpointStore::Steps() const {
  CAIRN_TRY_ASSIGN(const auto snapshot, kv().Latest());
  return snapshot->Steps();
}

Result<std::vector<uint64_t>> CheckpointStore::StepNumbers() const {
  CAIRN_TRY_ASSIGN(const auto snapshot, kv().Latest());
  return snapshot->step_numbers();
}

Result<SaveReport> CheckpointStore::Save(uint64_t step, const StateDict& state,
                                         const SaveOptions& options) {
  const internal::SaveAttempt attempt = NextAttempt(step, options);
  std::unique_ptr<internal::LastSave> last = TakeLastSave();
  const auto planned = kv::CatchExhaustion("the plan of a save", [&] {
    return last->plans.Plan(state, options, rank_in_world(), step);
  });
  if (!planned) {
    RememberSave(std::move(last), false);
    return Fail(Abort(attempt, planned.error()));
  }
  internal::SavePlan& plan = **planned;
  std::unique_ptr<internal::DeviceSave> device;
  if (internal::DeviceSave::IsNeeded(plan)) {
    auto begun = internal::DeviceSave::Begin(plan, options.streams);
    if (!begun) return Fail(Abort(attempt, std::move(begun).error()));
    device = *std::move(begun);
  }
  const bool is_recorded = device != nullptr || last->plans.is_remembered();
  const bool is_on_host = device == nullptr && last->chunks.page_digests.empty();
  auto report = impl_->SavePlanned(attempt, plan, options, is_recorded ? &last->chunks : nullptr,
                                   device.get(), is_on_host && last->plans.has_same_records());
  RememberSave(std::move(last), report.has_value() && is_recorded);
  return report;
}

std::unique_ptr<internal::LastSave> CheckpointStore::TakeLastSave() {
  return impl_->TakeLastSave();
}

void CheckpointStore::RememberSave(std::unique_ptr<internal::LastSave> save, bool has_plan) {
  if (!has_plan) save->plans = internal::PlanCache();
  impl_->RememberSave(std::move(save));
}

Result<kv::CompactReport> CheckpointStore::Compact(kv::CompactOptions options, bool compress) {
  options.decode = internal::ReadStoredChunk;
  options.compress = compress ? internal::CompressBytes : kv::CompressCallback();
  return kv::CatchExhaustion("a compaction", [&] { return kv::Compact(impl_->store(), options); });
}

Result<SaveReport> CheckpointStore::SavePlanned(const internal::SaveAttempt& attempt,
                                                internal::SavePlan& plan,
                                                const SaveOptions& options,
                                                internal::SavedChunks* saved,
                                                internal::DeviceSave* device) {
  return impl_->SavePlanned(attempt, plan, options, saved, device);
}

Result<kv::StepInfo> CheckpointStore::Edit(uint64_t source, uint64_t into, const StepEdit& edit) {
  return impl_->Edit(source, into, edit);
}

Result<MergeReport> CheckpointStore::Merge(std::span<const uint64_t> steps, uint64_t into,
                                           const MergeOptions& options) {
  return impl_->Merge(steps, into, options);
}

Result<Contents> CheckpointStore::List(std::optional<uint64_t> step,
                                       const KeyPatterns& patterns) const {
  CAIRN_TRY_ASSIGN(const auto snapshot, kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo info, snapshot->FindStep(step));
  return internal::RunList({.snapshot = snapshot, .step = info, .directory = kv().directory()},
                           patterns, impl_->trees());
}

Result<void> CheckpointStore::ForEachKey(const kv::StepInfo& step, const KeyPatterns& patterns,
                                         const TensorVisitor& on_tensor,
                                         const ValueVisitor& on_value) const {
  CAIRN_TRY_ASSIGN(const auto view, internal::ViewStep(kv(), step));
  return internal::RunForEachKey(view, patterns, on_tensor, on_value);
}

Result<TensorInfo> CheckpointStore::FindTensor(const kv::StepInfo& step,
                                               const std::string& fqn) const {
  CAIRN_TRY_ASSIGN(const auto view, internal::ViewStep(kv(), step));
  return internal::FindTensor(view, fqn);
}

Result<std::optional<std::vector<std::byte>>> CheckpointStore::FindExtension(
    const kv::StepInfo& step, std::string_view name) const {
  CAIRN_TRY_ASSIGN(const auto view, internal::ViewStep(kv(), step));
  return internal::FindExtension(view, name);
}

Result<std::vector<ChunkInfo>> CheckpointStore::Chunks(const kv::StepInfo& step,
                                                       const std::string& fqn) const {
  CAIRN_TRY_ASSIGN(const auto view, internal::ViewStep(kv(), step));
  CAIRN_TRY_ASSIGN(const TensorInfo tensor, internal::FindTensor(view, fqn));
  std::vector<ChunkInfo> chunks;
  CAIRN_TRY(internal::ForEachChunk(view, tensor, [&](ChunkInfo chunk) -> Result<void> {
    chunks.push_back(std::move(chunk));
    return {};
  }));
  return chunks;
}

Result<void> CheckpointStore::ForEachChunk(const kv::StepInfo& step,
                                           std::span<const TensorInfo> tensors,
                                           const ChunkVisitor& visit) const {
  CAIRN_TRY_ASSIGN(const auto view, internal::ViewStep(kv(), step));
  return internal::ForEachChunkOf(
      view, tensors, [&](size_t tensor, ChunkInfo&& chunk) { return visit(tensor, chunk); });
}

Result<LoadReport> CheckpointStore::Load(const kv::StepInfo& step,
                                         std::span<const LoadRequest> requests,
                                         const Progress& progress,
                                         std::span<const DeviceStream> streams,
                                         std::span<const TensorInfo> known) const {
  return internal::WithStep(kv(), step, [&](const internal::StepView& view) {
    return internal::RunLoad(view, requests, progress, streams, known);
  });
}

Result<LoadReport> CheckpointStore::LoadShards(const kv::StepInfo& step,
                                               std::span<const ShardTarget> targets,
                                               const ShardLoadOptions& options) const {
  if (!options.read_once || world_size() == 1) {
    return internal::WithStep(kv(), step, [&](const internal::StepView& view) {
      return internal::LoadOwnShards(view, targets, rank(), options);
    });
  }
  return internal::LoadShardsOnce(kv(), step, targets, *impl_->communicator(), options);
}

Result<UpdateReport> CheckpointStore::Update(const kv::StepInfo& base, const kv::StepInfo& step,
                                             std::span<const LoadRequest> requests,
                                             const Progress& progress,
                                             std::span<const DeviceStream> streams) const {
  bool is_compared = false;
  const auto update = [&](const internal::StepView& view) -> Result<UpdateReport> {
    // In the same snapshot, because the tables of both steps are compared.
    CAIRN_TRY_ASSIGN(const kv::StepInfo found, view.snapshot->FindStep(base.step));
    if (found.generation != base.generation) {
      return Fail(Error{.code = ErrorCode::kNotFound,
                        .hint = Hint::kListSteps,
                        .message = "the step was overwritten in the meantime",
                        .step = base.step});
    }
    const internal::StepView base_view{
        .snapshot = view.snapshot, .step = found, .directory = view.directory};
    return internal::RunUpdate(base_view, view, requests, progress, streams, is_compared);
  };
  return internal::WithStep(kv(), step, update);
}

Result<std::vector<std::optional<MappedTensor>>> CheckpointStore::Map(
    const kv::StepInfo& step, std::span<const std::string> fqns, bool verify,
    const Progress& progress) const {
  CAIRN_TRY_ASSIGN(UncheckedMap mapped, MapUnchecked(step, fqns));
  if (verify) CAIRN_TRY(mapped.check->Run(progress));
  return std::move(mapped.tensors);
}

Result<UncheckedMap> CheckpointStore::MapUnchecked(const kv::StepInfo& step,
                                                   std::span<const std::string> fqns) const {
  return internal::WithStep(
      kv(), step, [&](const internal::StepView& view) { return internal::RunMap(view, fqns); });
}

Result<Diff> CheckpointStore::Compare(uint64_t step_a, uint64_t step_b,
                                      const KeyPatterns& patterns) const {
  CAIRN_TRY_ASSIGN(const auto snapshot, kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo a, snapshot->FindStep(step_a));
  const auto compare = [&](const internal::StepView& view_a) -> Result<Diff> {
    internal::StepView view_b = view_a;  // in the same snapshot
    CAIRN_TRY_ASSIGN(view_b.step, view_a.snapshot->FindStep(step_b));
    return internal::RunCompare(view_a, view_b, patterns);
  };
  return internal::WithView(kv(), {.snapshot = snapshot, .step = a, .directory = kv().directory()},
                            compare);
}

Result<void> CheckpointStore::History(const std::string& fqn, const VersionVisitor& visit) const {
  CAIRN_TRY_ASSIGN(const auto snapshot, kv().Latest());
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, snapshot->Steps());
  std::vector<internal::StepView> views;
  for (const kv::StepInfo& step : steps) {
    views.push_back({.snapshot = snapshot, .step = step, .directory = kv().directory()});
  }
  bool is_found = false;
  CAIRN_TRY(internal::RunHistory(views, fqn, [&](const KeyVersion& version) {
    is_found = true;
    return visit(version);
  }));
  if (is_found) return {};
  if (!views.empty()) CAIRN_TRY(internal::FindTensor(views.back(), fqn));  // names similar keys
  return Fail(Error{.code = ErrorCode::kNotFound,
                    .hint = Hint::kListKeys,
                    .message = "no step has this key",
                    .key = fqn});
}

Result<std::vector<std::optional<StoredStatistics>>> CheckpointStore::FindStatistics(
    const kv::StepInfo& step, std::span<const TensorInfo> tensors) const {
  return internal::WithStep(kv(), step, [&](const internal::StepView& view) {
    return internal::FindStatistics(view, tensors);
  });
}

Result<std::vector<SpaceUse>> CheckpointStore::Space(uint64_t step, const KeyPatterns& patterns,
                                                     uint64_t depth,
                                                     const Progress& progress) const {
  CAIRN_TRY_ASSIGN(const auto snapshot, kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo info, snapshot->FindStep(step));
  return internal::MeasureSpace({.snapshot = snapshot, .step = info, .directory = kv().directory()},
                                patterns, depth, progress);
}

Result<kv::Store::DeleteReport> CheckpointStore::Delete(std::span<const uint64_t> steps,
                                                        bool dry_run) {
  return impl_->Delete(steps, dry_run);
}

Result<uint64_t> CheckpointStore::Verify(std::optional<uint64_t> step,
                                         const std::function<void(const kv::Damage&)>& damage,
                                         const Progress& progress,
                                         const Progress& record_progress) const {
  return internal::RunVerify(kv(), step, damage, progress, record_progress);
}

Result<void> CheckpointStore::Close() { return impl_->Close(); }

}  // namespace cairn::core
