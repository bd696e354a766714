#include "core/checkpoint_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "core/inspect/internal/list.h"
#include "core/inspect/internal/verify.h"
#include "core/load/internal/load.h"
#include "core/load/map.h"
#include "core/ranks/gather_v.h"
#include "core/ranks/status_agreement.h"
#include "core/rewrite/internal/rewrite.h"
#include "core/save/internal/compression_rates.h"
#include "core/save/internal/device_save.h"
#include "core/save/internal/plan_cache.h"
#include "core/save/internal/save.h"
#include "core/save/internal/save_planner.h"
#include "core/save/internal/saved_chunks.h"
#include "core/step/application_records.h"
#include "core/step/internal/compress.h"
#include "core/step/internal/delta_chain.h"
#include "core/step/internal/lookup.h"
#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"
#include "kv/compact.h"
#include "kv/io/worker_pool.h"

namespace cairn::core {
namespace {

using Opened = Result<std::unique_ptr<kv::Store>>;

Result<void> CheckSame(const kv::Store& store, std::string_view uuid) {
  if (store.uuid() == uuid) return {};
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = fmt::format("this is store {}, rank 0 has opened store {}; give all "
                                           "ranks the same directory, on a file system that they "
                                           "share",
                                           store.uuid(), uuid),
                    .file = store.directory()});
}

// "<uuid> <session>"; no session for readers.
Result<std::string> Introduce(const Opened& store, kv::OpenMode mode) {
  if (!store) return std::unexpected(store.error());
  std::string words = (*store)->uuid() + " ";
  if (mode != kv::OpenMode::kWrite) return words;
  CAIRN_TRY_ASSIGN(const std::string session, (*store)->OpenSession());
  return words + session;
}

/// Opens one store on all ranks of a job:
/// 1. Rank 0 opens the store and broadcasts its UUID and session.
/// 2. The others open it and compare the UUIDs.
/// 3. All ranks agree on the status.
Result<std::unique_ptr<kv::Store>> OpenTogether(const std::string& address, kv::OpenMode mode,
                                                Communicator& communicator,
                                                kv::StoreOptions options) {
  const auto open = [&](kv::OpenMode own_mode) -> Opened {
    return kv::Store::Open(address, own_mode, options);
  };
  const bool is_first = communicator.rank() == 0;
  Opened store = nullptr;
  Result<std::string> words("");
  if (is_first) {
    store = open(mode);
    words = Introduce(store, mode);
  }
  CAIRN_TRY(AgreeOnStatus(communicator, words));
  CAIRN_TRY_ASSIGN(const ByteVector bytes,
                   BroadcastV(communicator, std::as_bytes(std::span(*words)), 0));
  if (!is_first) {
    const std::string_view introduction(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const size_t space = std::min(introduction.find(' '), introduction.size() - 1);
    options.session = introduction.substr(space + 1);
    store = open(mode == kv::OpenMode::kWrite ? kv::OpenMode::kJoinSession : mode);
    if (store) {
      Result<void> same = CheckSame(**store, introduction.substr(0, space));
      if (!same) store = std::unexpected(std::move(same).error());
    }
  }
  CAIRN_TRY(AgreeOnStatus(communicator, store));
  return store;
}

/// Runs the saves of a multi-rank store in the order in which they were requested, on whatever
/// threads they run. Otherwise one rank could wait for the parts of its second attempt while
/// another rank waits for the decision about its first. Threads: all members are safe.
class SaveQueue {
 public:
  /// Returns the next position in the queue. `on_enter` runs under the lock, so that names that it
  /// generates are in the order of the queue. Requires one call of Leave for each position.
  template <typename OnEnter>
  uint64_t Enter(const OnEnter& on_enter) {
    const MutexLock lock(mutex_);
    on_enter();
    return end_++;
  }
  /// Waits until all earlier positions have left.
  void AwaitTurn(uint64_t position) {
    const MutexLock lock(mutex_);
    while (front_ != position) changed_.Wait(mutex_);
  }
  /// Removes a position, in any order.
  void Leave(uint64_t position) {
    {
      const MutexLock lock(mutex_);
      CAIRN_CHECK(position >= front_ && position < end_);
      left_.insert(position);
      while (left_.erase(front_) > 0) ++front_;
    }
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t front_ CAIRN_GUARDED_BY(mutex_) = 0;
  uint64_t end_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::set<uint64_t> left_ CAIRN_GUARDED_BY(mutex_);  // positions behind front_ that have left
};

}  // namespace

struct CheckpointStore::Impl {
  /// While it exists, this thread is in a call that reports its progress and holds `writing`.
  class Writing {
   public:
    explicit Writing(Impl& impl) : impl_(impl) { impl_.writer = std::this_thread::get_id(); }
    ~Writing() { impl_.writer = std::thread::id(); }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    Impl& impl_;
  };

  Impl(std::unique_ptr<kv::Store> own_store, Communicator* ranks)
      : store(std::move(own_store)), communicator(ranks) {
    if (ranks == nullptr) return;
    self = {.rank = static_cast<uint32_t>(ranks->rank()),
            .world_size = static_cast<uint32_t>(ranks->world_size())};
  }

  Result<void> CheckNotNested() const {
    if (writer != std::this_thread::get_id()) return {};
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "this thread is in a call that changes the store: the function "
                                 "that follows its progress must not change the store",
                      .file = store->directory()});
  }

  static kv::WorkerPool& Made(std::unique_ptr<kv::WorkerPool>& pool) {
    if (pool == nullptr) pool = std::make_unique<kv::WorkerPool>(kv::WorkerThreads());
    return *pool;
  }

  const std::unique_ptr<kv::Store> store;
  Communicator* const communicator;  // null: one process alone
  internal::RankInWorld self;
  internal::TreeCache trees;
  internal::CompressionRates rates;
  SaveQueue queue;                      // for a multi-rank store
  std::atomic<std::thread::id> writer;  // the thread of Writing
  Mutex writing;                        // held during all of a save, a deletion and the close
  bool closed CAIRN_GUARDED_BY(writing) = false;
  std::unique_ptr<kv::WorkerPool> pool CAIRN_GUARDED_BY(writing);  // set by the first save
  Mutex remembering;
  std::unique_ptr<internal::LastSave> last_save CAIRN_GUARDED_BY(remembering);  // may be null
};

CheckpointStore::CheckpointStore(std::unique_ptr<kv::Store> store, Communicator* communicator)
    : impl_(std::make_unique<Impl>(std::move(store), communicator)) {}
CheckpointStore::~CheckpointStore() = default;

Result<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const std::string& address,
                                                               kv::OpenMode mode,
                                                               kv::StoreOptions options) {
  CAIRN_TRY_ASSIGN(auto store, kv::Store::Open(address, mode, std::move(options)));
  return std::unique_ptr<CheckpointStore>(new CheckpointStore(std::move(store), nullptr));
}

Result<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(std::shared_ptr<kv::Storage> storage,
                                                               kv::OpenMode mode,
                                                               kv::StoreOptions options) {
  CAIRN_TRY_ASSIGN(auto store, kv::Store::Open(std::move(storage), mode, std::move(options)));
  return std::unique_ptr<CheckpointStore>(new CheckpointStore(std::move(store), nullptr));
}

Result<std::unique_ptr<CheckpointStore>> CheckpointStore::OpenShared(const std::string& address,
                                                                     kv::OpenMode mode,
                                                                     Communicator& communicator,
                                                                     kv::StoreOptions options) {
  CAIRN_TRY_ASSIGN(auto store, OpenTogether(address, mode, communicator, std::move(options)));
  return std::unique_ptr<CheckpointStore>(new CheckpointStore(std::move(store), &communicator));
}

uint32_t CheckpointStore::rank() const { return impl_->self.rank; }
uint32_t CheckpointStore::world_size() const { return impl_->self.world_size; }
internal::RankInWorld CheckpointStore::rank_in_world() const { return impl_->self; }
internal::TreeCache& CheckpointStore::trees() const { return impl_->trees; }
internal::CompressionRates& CheckpointStore::rates() const { return impl_->rates; }
kv::Store& CheckpointStore::kv() const { return *impl_->store; }

internal::SaveAttempt CheckpointStore::NextAttempt(uint64_t step, const SaveOptions& options) {
  internal::SaveAttempt attempt{.step = step, .name = {}};
  if (world_size() == 1) return attempt;
  attempt.queue_position = impl_->queue.Enter([&] { attempt.name = kv().NextAttempt(step); });
  const auto now = std::chrono::steady_clock::now();
  const auto most = std::chrono::floor<std::chrono::milliseconds>(
      std::chrono::steady_clock::time_point::max() - now);
  const auto deadline = std::clamp(options.deadline, std::chrono::milliseconds(0), most / 2);
  attempt.deadline = now + deadline;
  attempt.decision_deadline = attempt.deadline + deadline / 4 + std::chrono::seconds(1);
  return attempt;
}

Error CheckpointStore::Abort(const internal::SaveAttempt& attempt, Error error) {
  if (attempt.name.empty()) return error;
  // If this file cannot be written either, the other ranks fail at their deadline.
  (void)kv().FailAttempt(attempt.name, rank(), error);
  impl_->queue.Leave(attempt.queue_position);
  return error;
}

Result<SaveReport> CheckpointStore::SavePlanned(
    const internal::SaveAttempt& attempt, internal::SavePlan& plan, const SaveOptions& options,
    internal::SavedChunks* saved, internal::DeviceSave* device, bool has_same_records) {
  Impl& impl = *impl_;
  if (auto is_free = impl.CheckNotNested(); !is_free) return Fail(Abort(attempt, is_free.error()));
  if (!attempt.name.empty()) impl.queue.AwaitTurn(attempt.queue_position);
  const MutexLock lock(impl.writing);
  const Impl::Writing writing(impl);
  auto* const pool = &impl.pool;  // used under the lock
  auto report = kv::CatchExhaustion("the records of a save", [&] {
    return internal::RunSave(plan, {.store = *impl.store,
                                    .attempt = attempt,
                                    .self = impl.self,
                                    .options = options,
                                    .pool = Impl::Made(*pool),
                                    .trees = impl.trees,
                                    .rates = impl.rates,
                                    .saved = saved,
                                    .has_same_records = has_same_records,
                                    .device = device});
  });
  if (!report) return Fail(Abort(attempt, std::move(report).error()));
  if (!attempt.name.empty()) impl.queue.Leave(attempt.queue_position);
  return report;
}

std::unique_ptr<internal::LastSave> CheckpointStore::TakeLastSave() {
  const MutexLock lock(impl_->remembering);
  return impl_->last_save ? std::move(impl_->last_save) : std::make_unique<internal::LastSave>();
}

void CheckpointStore::RememberSave(std::unique_ptr<internal::LastSave> save, bool has_plan) {
  if (!has_plan) save->plans = internal::PlanCache();
  const MutexLock lock(impl_->remembering);
  impl_->last_save = std::move(save);
}

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
  auto report = SavePlanned(attempt, plan, options, is_recorded ? &last->chunks : nullptr,
                            device.get(), is_on_host && last->plans.has_same_records());
  // A save of device memory has removed the unchanged pages from its plan.
  RememberSave(std::move(last), report.has_value() && is_recorded && device == nullptr);
  return report;
}

Result<kv::CompactReport> CheckpointStore::Compact(kv::CompactOptions options, bool compress) {
  options.decode = internal::ReadStoredChunk;
  options.compress = compress ? internal::CompressBytes : kv::CompressCallback();
  return kv::CatchExhaustion("a compaction", [&] { return kv::Compact(kv(), options); });
}

Result<kv::StepInfo> CheckpointStore::Edit(uint64_t source, uint64_t into, const StepEdit& edit) {
  CAIRN_TRY(impl_->CheckNotNested());
  const MutexLock lock(impl_->writing);
  return kv::CatchExhaustion("the records of a step",
                             [&] { return internal::RunEdit(kv(), source, into, edit); });
}

Result<MergeReport> CheckpointStore::Merge(std::span<const uint64_t> steps, uint64_t into,
                                           const MergeOptions& options) {
  Impl& impl = *impl_;
  CAIRN_TRY(impl.CheckNotNested());
  const MutexLock lock(impl.writing);
  const Impl::Writing writing(impl);
  auto* const pool = &impl.pool;  // used under the lock
  return kv::CatchExhaustion("a merge", [&] {
    return internal::RunMerge(*impl.store, steps, into, options, Impl::Made(*pool));
  });
}

Result<Contents> CheckpointStore::List(std::optional<uint64_t> step,
                                       const KeyPatterns& patterns) const {
  CAIRN_TRY_ASSIGN(const auto view, internal::FindView(kv(), step));
  return internal::RunList(view, patterns, impl_->trees);
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

Result<std::vector<std::string>> CheckpointStore::ListRecords(const kv::StepInfo& step) const {
  CAIRN_TRY_ASSIGN(const auto view, internal::ViewStep(kv(), step));
  std::vector<std::string> names;
  CAIRN_TRY(view.snapshot->Scan(kv::Column::kApplication, view.step, "",
                                [&](std::string_view name, auto) -> Result<bool> {
                                  names.emplace_back(name);
                                  return true;
                                }));
  return names;
}

Result<std::vector<std::byte>> CheckpointStore::ReadRecord(const kv::StepInfo& step,
                                                           const std::string& name) const {
  CAIRN_TRY_ASSIGN(const auto view, internal::ViewStep(kv(), step));
  CAIRN_TRY_ASSIGN(const auto record,
                   view.snapshot->Get(kv::Column::kApplication, view.step, name));
  if (!record) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .message = fmt::format("there is no record '{}'", name),
                      .step = step.step});
  }
  auto data = internal::DecodeApplicationRecord(name, *record);
  if (!data) return Fail(std::move(data).error().WithStep(step.step));
  return data;
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

namespace {

/// After a load that has succeeded, the next save continues from `step`.
template <typename Loaded>
Result<Loaded> NoteLoad(const kv::Store& store, const kv::StepInfo& step, Result<Loaded> loaded) {
  if (loaded) store.ContinueFrom(step);
  return loaded;
}

}  // namespace

Result<LoadReport> CheckpointStore::Load(const kv::StepInfo& step,
                                         std::span<const LoadRequest> requests,
                                         const Progress& progress,
                                         std::span<const DeviceStream> streams,
                                         std::span<const TensorInfo> known) const {
  return NoteLoad(kv(), step, internal::WithStep(kv(), step, [&](const internal::StepView& view) {
                    return internal::RunLoad(view, requests, progress, streams, known);
                  }));
}

Result<LoadReport> CheckpointStore::Examine(const kv::StepInfo& step,
                                            std::span<const LoadRequest> requests,
                                            std::span<ValueInfo> values) const {
  return internal::WithStep(kv(), step, [&](const internal::StepView& view) -> Result<LoadReport> {
    CAIRN_TRY(internal::RunLoadValues(view, values, {}));
    return internal::RunLoad(view, requests, {});
  });
}

Result<void> CheckpointStore::LoadValues(const kv::StepInfo& step, std::span<ValueInfo> values,
                                         const Progress& progress) const {
  const auto load = [&](const internal::StepView& view) {
    return internal::RunLoadValues(view, values, progress);
  };
  return NoteLoad(kv(), step, kv::CatchExhaustion("the bytes of values", [&] {
                    return internal::WithStep(kv(), step, load);
                  }));
}

Result<LoadReport> CheckpointStore::LoadShards(const kv::StepInfo& step,
                                               std::span<const ShardTarget> targets,
                                               const ShardLoadOptions& options) const {
  if (!options.read_once || world_size() == 1) {
    return NoteLoad(kv(), step, internal::WithStep(kv(), step, [&](const internal::StepView& view) {
                      return internal::LoadOwnShards(view, targets, rank(), options);
                    }));
  }
  return NoteLoad(kv(), step,
                  internal::LoadShardsOnce(kv(), step, targets, *impl_->communicator, options));
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
  return NoteLoad(kv(), step, internal::WithStep(kv(), step, update));
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
  return NoteLoad(kv(), step, internal::WithStep(kv(), step, [&](const internal::StepView& view) {
                    return internal::RunMap(view, fqns);
                  }));
}

Result<kv::Store::DeleteReport> CheckpointStore::Delete(std::span<const uint64_t> steps,
                                                        bool dry_run) {
  CAIRN_TRY(impl_->CheckNotNested());
  const MutexLock lock(impl_->writing);
  return kv().Delete(steps, dry_run);
}

Result<uint64_t> CheckpointStore::Verify(std::optional<uint64_t> step,
                                         const std::function<void(const kv::Damage&)>& damage,
                                         const Progress& progress,
                                         const Progress& record_progress) const {
  return internal::RunVerify(kv(), step, damage, progress, record_progress);
}

Result<void> CheckpointStore::Close() {
  CAIRN_TRY(impl_->CheckNotNested());
  const MutexLock lock(impl_->writing);
  // Rank 0 removes the files from which the others learn the outcome of their last save, so all
  // ranks must have read them.
  Result<void> all_done = {};
  if (impl_->communicator != nullptr && !impl_->closed) all_done = impl_->communicator->Barrier();
  impl_->closed = true;
  Result<void> closed = kv().Close();
  return closed ? all_done : closed;
}

}  // namespace cairn::core
