// Asynchronous saves: stage, hand to the worker, return.

#include "core/async_save.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "core/base/internal/catch_bad_alloc.h"
#include "core/save/internal/device_save.h"
#include "core/save/internal/save.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/internal/staging.h"

namespace cairn::core {

struct SaveHandle::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result<SaveReport>> result;             // guarded by mutex
  std::shared_ptr<const internal::StagedPoint> staged;  // shared with the save; null: at once
};

void SaveHandle::WaitStaged() const {
  if (state_->staged != nullptr) (void)state_->staged->Await();  // the handle tells an error
}

Result<void> SaveHandle::MakeStreamWait(const DeviceStream& stream) const {
  return state_->staged == nullptr ? Result<void>() : state_->staged->MakeStreamWait(stream);
}

Result<SaveReport> SaveHandle::Wait() const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->result.has_value(); });
  return *state_->result;
}

bool SaveHandle::WaitFor(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, timeout, [this] { return state_->result.has_value(); });
}

bool SaveHandle::done() const {
  const std::lock_guard lock(state_->mutex);
  return state_->result.has_value();
}

class AsyncSaver::Impl {
 public:
  explicit Impl(CheckpointStore* store) : store_(store), worker_([this] { Loop(); }) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  Result<std::shared_ptr<SaveHandle::State>> Save(uint64_t step, const StateDict& state,
                                                  const SaveOptions& options) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !task_.has_value(); });
    }
    Task task{.attempt = store_->NextAttempt(step, options), .options = options};
    const auto begin = [&] { return Begin(state, task); };
    if (Result<void> begun = internal::CatchBadAlloc("staging a save", begin); !begun) {
      return Fail(store_->Abort(task.attempt, std::move(begun).error()));
    }
    auto handle = std::make_shared<SaveHandle::State>();
    if (task.device != nullptr) handle->staged = task.device->staged_point();
    task.handle = handle;
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
    changed_.notify_all();
    return handle;
  }

  uint64_t staging_bytes() const { return staging_.capacity_bytes(); }

 private:
  struct Task {
    internal::SaveAttempt attempt;
    internal::SavePlan plan;                       // what is in host memory is staged
    std::unique_ptr<internal::DeviceSave> device;  // for what is not; null: nothing
    SaveOptions options;
    std::shared_ptr<SaveHandle::State> handle;  // shared by the worker and the caller's handle
  };

  // Plans the task and stages what it writes.
  Result<void> Begin(const StateDict& state, Task& task) {
    CAIRN_TRY(CheckStep(task.attempt.step, task.options));
    // Names the key of whatever is wrong with the state, before anything is copied.
    CAIRN_TRY_ASSIGN(task.plan, internal::PlanSave(state, task.options, store_->place()));
    const bool base_is_known = BaseIsLastSave(task.options);
    CAIRN_TRY(staging_.Stage(task.plan, base_is_known ? &last_save_ : nullptr));
    // What is not in staging must come from the very step that it was compared with.
    if (base_is_known) task.options.base_step = last_save_.step.step;
    if (!internal::DeviceSave::IsNeeded(task.plan)) return {};
    CAIRN_TRY_ASSIGN(task.device, internal::DeviceSave::Begin(task.plan, task.options.streams));
    if (!task.options.device_snapshot) return {};
    CAIRN_TRY(task.device->Digest(task.plan, base_is_known ? &last_save_ : nullptr));
    CAIRN_TRY_ASSIGN(const bool taken, task.device->TakeSnapshot(task.plan));
    if (taken) task.device->WriteFilesDirectly();
    return {};
  }

  // What the save itself would refuse for sure, said before the copy.
  Result<void> CheckStep(uint64_t step, const SaveOptions& options) const {
    if (store_->rank() > 0) return {};  // rank 0 looks
    if (!store_->kv().writable()) {
      return Fail(ErrorCode::kFailedPrecondition,
                  "the store is open for reading only; open it for writing to save");
    }
    if (options.overwrite) return {};
    CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, store_->Steps());
    for (const kv::StepInfo& info : steps) {
      if (info.step != step) continue;
      return Fail(Error{.code = ErrorCode::kConflict,
                        .message = fmt::format("step {} exists already; overwrite it or give "
                                               "another number",
                                               step),
                        .step = step});
    }
    return {};
  }

  // True if the step to compare with is the one that the last save of this saver wrote.
  bool BaseIsLastSave(const SaveOptions& options) const {
    if (!options.incremental || options.chunk_bytes != last_save_.chunk_bytes) return false;
    const auto snapshot = store_->kv().Latest();
    if (!snapshot || (*snapshot)->steps().empty()) return false;
    const auto base = (*snapshot)->FindStep(options.base_step);
    return base && base->generation == last_save_.step.generation &&
           base->step == last_save_.step.step;
  }

  void Loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || task_.has_value(); });
      // A save that was begun is finished even if the saver is being destroyed.
      if (!task_) return;
      Task& task = *task_;
      lock.unlock();
      auto result = store_->SavePlanned(task.attempt, task.plan, task.options, &last_save_,
                                        task.device.get());
      std::optional<internal::DeviceSave::Reservation> later;
      if (task.device != nullptr) later = task.device->reservation();
      task.device.reset();  // a save that failed lets its waiters go
      const auto handle = task.handle;
      lock.lock();
      // First free for the next save, then known as done: who waits for the handle may save at
      // once.
      task_.reset();
      changed_.notify_all();
      {
        const std::lock_guard done(handle->mutex);
        handle->result = std::move(result);
        handle->changed.notify_all();
      }
      if (!later) continue;
      // Who saves again soon takes what it needs itself.
      while (!stop_ && !task_) {
        lock.unlock();
        const bool more = later->TakeSome();
        lock.lock();
        if (!more) break;
      }
    }
  }

  CheckpointStore* store_;  // outlives the saver
  // Touched only while no task runs, and by the task.
  internal::StagingArea staging_;
  internal::SavedChunks last_save_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_; the task itself belongs to the worker until it is reset.
  std::optional<Task> task_;
  bool stop_ = false;

  std::thread worker_;  // last: it uses all of the above
};

AsyncSaver::AsyncSaver(CheckpointStore* store) : impl_(std::make_unique<Impl>(store)) {}
AsyncSaver::~AsyncSaver() = default;

Result<SaveHandle> AsyncSaver::Save(uint64_t step, const StateDict& state,
                                    const SaveOptions& options) {
  SaveHandle handle;
  CAIRN_TRY_ASSIGN(handle.state_, impl_->Save(step, state, options));
  return handle;
}

uint64_t AsyncSaver::staging_bytes() const { return impl_->staging_bytes(); }

}  // namespace cairn::core
