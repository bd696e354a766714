#include "core/async_save.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "core/save/internal/device_save.h"
#include "core/save/internal/plan_cache.h"
#include "core/save/internal/save.h"
#include "core/save/internal/save_planner.h"
#include "core/save/internal/staging.h"
#include "kv/base/catch_exhaustion.h"
#include "kv/base/mutex.h"

namespace cairn::core {

void SaveHandle::WaitStaged() const {
  if (staged_ != nullptr) (void)staged_->Await();  // Wait returns an error
}

Result<void> SaveHandle::MakeStreamWait(const DeviceStream& stream) const {
  return staged_ == nullptr ? Result<void>() : staged_->MakeStreamWait(stream);
}

class AsyncSaver::Impl {
 public:
  explicit Impl(CheckpointStore* store) : store_(store) { CAIRN_CHECK(store != nullptr); }

  ~Impl() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.NotifyAll();
    if (worker_.joinable()) worker_.join();
  }

  Result<SaveHandle> Save(uint64_t step, const StateDict& state, const SaveOptions& options) {
    {
      const MutexLock lock(mutex_);
      while (task_) changed_.Wait(mutex_);
    }
    Task task{.attempt = store_->NextAttempt(step, options), .options = options};
    task.attempt.continuation = store_->kv().continuation();
    const auto begin = [&] { return Begin(state, task); };
    if (Result<void> begun = kv::CatchExhaustion("staging a save", begin); !begun) {
      if (task.last != nullptr) store_->RememberSave(std::move(task.last), false);
      return Fail(store_->Abort(task.attempt, std::move(begun).error()));
    }
    SaveHandle handle;
    handle.result_ = task.result.get_future().share();
    if (task.device != nullptr) handle.staged_ = task.device->staged_point();
    const MutexLock lock(mutex_);
    task_ = std::move(task);
    changed_.NotifyAll();
    return handle;
  }

  uint64_t staging_bytes() const { return staging_.capacity_bytes(); }

 private:
  struct Task {
    internal::SaveAttempt attempt;
    std::unique_ptr<internal::LastSave> last;      // replaced by what the task writes
    internal::SavePlan plan;                       // its shards in host memory are staged
    std::unique_ptr<internal::DeviceSave> device;  // null: no tensors in device memory
    SaveOptions options;
    std::promise<Result<SaveReport>> result;
  };

  // Plans the task and stages what it writes.
  Result<void> Begin(const StateDict& state, Task& task) {
    CAIRN_TRY(CheckStep(task.attempt.step, task.options));
    if (!worker_.joinable()) {
      CAIRN_TRY_ASSIGN(worker_, kv::StartThread("an asynchronous save", [this] { Loop(); }));
    }
    // Reports errors in the state, with the key, before anything is copied.
    task.last = store_->TakeLastSave();
    internal::PlanCache& plans = task.last->plans;
    CAIRN_TRY(plans.Plan(state, task.options, store_->rank_in_world(), task.attempt.step));
    task.plan = plans.Take();
    const internal::SavedChunks& last = task.last->chunks;
    const internal::SavedChunks* const base = IsBase(last, task.options) ? &last : nullptr;
    if (base != nullptr && !task.options.unchanged.empty()) {
      CAIRN_TRY_ASSIGN(const auto view, internal::ViewStep(store_->kv(), last.step));
      internal::UnmarkRenamed(task.plan, view, task.attempt.step, store_->trees());
    }
    CAIRN_TRY(staging_.Stage(task.plan, base, task.options));
    task.options.hold_memory = {};
    if (task.options.check_memory) {
      CAIRN_TRY(task.options.check_memory());
      task.options.check_memory = {};
    }
    // Chunks that were not staged must be referenced in the step that they were compared with.
    if (base != nullptr) task.options.base_step = last.step.step;
    if (!internal::DeviceSave::IsNeeded(task.plan)) return {};
    CAIRN_TRY_ASSIGN(task.device, internal::DeviceSave::Begin(task.plan, task.options.streams));
    if (!task.options.device_snapshot) return {};
    CAIRN_TRY(task.device->Digest(task.plan, base));
    CAIRN_TRY(task.device->TakeSnapshot(task.plan));
    return {};
  }

  // Reports errors that the save would certainly return, before anything is copied.
  Result<void> CheckStep(uint64_t step, const SaveOptions& options) const {
    if (store_->rank() > 0) return {};  // rank 0 checks
    if (!store_->kv().writable()) {
      return Fail(
          Error{.code = ErrorCode::kFailedPrecondition,
                .hint = Hint::kOpenForWriting,
                .message = "the store is open for reading only; open it for writing to save"});
    }
    if (options.overwrite) return {};
    CAIRN_TRY_ASSIGN(const std::vector<uint64_t> steps, store_->StepNumbers());
    if (!std::ranges::binary_search(steps, step)) return {};
    return Fail(Error{.code = ErrorCode::kConflict,
                      .hint = Hint::kOverwrite,
                      .message = fmt::format("step {} exists already; overwrite it, or give "
                                             "another number",
                                             step),
                      .step = step});
  }

  // True if the base step is the one that the last save wrote.
  bool IsBase(const internal::SavedChunks& last, const SaveOptions& options) const {
    if (!options.incremental || options.chunk_bytes != last.chunk_bytes) return false;
    const auto snapshot = store_->kv().Latest();
    if (!snapshot || (*snapshot)->step_numbers().empty()) return false;
    const auto base = (*snapshot)->FindStep(options.base_step);
    return base && base->HasRecordsOf(last.step);
  }

  void Loop() {
    MutexLock lock(mutex_);
    while (true) {
      while (!stop_ && !task_) changed_.Wait(mutex_);
      // A save that has begun is finished even if the saver is being destroyed.
      if (!task_) return;
      Task& task = *task_;
      lock.Unlock();
      auto result = kv::CatchExhaustion("a save", [&] {
        return store_->SavePlanned(task.attempt, task.plan, task.options, &task.last->chunks,
                                   task.device.get());
      });
      store_->RememberSave(std::move(task.last), result.has_value());
      std::optional<internal::DeviceSave::Reservation> reservation;
      if (task.device != nullptr) reservation = task.device->reservation();
      task.device.reset();  // after a failed save: ends the waits for its StagedPoint
      std::promise<Result<SaveReport>> promise = std::move(task.result);
      lock.Lock();
      // The saver is ready for the next save before this one is reported as done, so that a caller
      // that has waited for the handle can save at once.
      task_.reset();
      changed_.NotifyAll();
      promise.set_value(std::move(result));
      if (!reservation) continue;
      // Locks pages for the next save, until that save begins and locks what it still needs.
      while (!stop_ && !task_) {
        lock.Unlock();
        const bool more = reservation->ReserveSome();
        lock.Lock();
        if (!more) break;
      }
    }
  }

  CheckpointStore* store_;  // outlives the saver
  // Used by Save while there is no task, and by the worker while there is one.
  internal::StagingArea staging_;

  Mutex mutex_;
  CondVar changed_;
  // The worker uses the task without the lock; nobody else uses it until it is reset.
  std::optional<Task> task_ CAIRN_GUARDED_BY(mutex_);
  bool stop_ CAIRN_GUARDED_BY(mutex_) = false;

  std::thread worker_;  // started by the first save; declared last: it uses all of the above
};

AsyncSaver::AsyncSaver(CheckpointStore* store) : impl_(std::make_unique<Impl>(store)) {}
AsyncSaver::~AsyncSaver() = default;

Result<SaveHandle> AsyncSaver::Save(uint64_t step, const StateDict& state,
                                    const SaveOptions& options) {
  return impl_->Save(step, state, options);
}

uint64_t AsyncSaver::staging_bytes() const { return impl_->staging_bytes(); }

}  // namespace cairn::core
