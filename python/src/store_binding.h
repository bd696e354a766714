#pragma once
/// The store of the Python side: owns a CheckpointStore and its AsyncSaver.

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "kv/base/copy_options.h"
#include "kv/base/mutex.h"
#include "kv/base/options.h"
#include "kv/read/snapshot.h"
#include "python/src/communicator_binding.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/process_guard.h"

namespace cairn::python {

namespace nb = nanobind;

template <typename T>
inline constexpr bool kIsResult = false;
template <typename T>
inline constexpr bool kIsResult<Result<T>> = true;

/// Threads: all members are safe. In a forked child every member raises Invalid, and the destructor
/// does not touch what belongs to the parent.
class StoreBinding {
 public:
  /// Opens a store. `communicator`: connects the ranks that open the store together, or null if
  /// this process opens it alone. Raises the error of core::CheckpointStore::Open.
  StoreBinding(const std::string& address, bool writable,
               std::shared_ptr<CommunicatorBinding> communicator, const kv::StoreOptions& options);
  ~StoreBinding();

  /// Copies steps of `source` to this store (kv/copy_steps.h). Unless `progress` is None, calls
  /// `progress(step, done bytes, total bytes)` at once and then at most every 100 ms, on any thread
  /// of the copy, which stops if the function returns False or raises.
  std::vector<kv::CopiedStep> CopyFrom(const StoreBinding& source, nb::object progress,
                                       nb::kwargs options);
  /// Adds the class Store to the extension module.
  static nb::class_<StoreBinding> Bind(nb::module_& m);
  /// Waits for a running asynchronous save and, in a multi-rank store, for the other ranks; then
  /// closes the store. May be called again.
  void Close();
  /// Waits for a running asynchronous save and closes the store without waiting for other ranks,
  /// which may never close it after an error.
  void Abandon();
  /// Returns the store; null once it is closed. Callers that keep it must also keep this object,
  /// which owns its communicator.
  std::shared_ptr<core::CheckpointStore> Share() const {
    process_.Check();
    const GilRelease no_gil;
    const std::shared_lock open(close_mutex_);
    return store_;
  }
  /// Returns the communicator of the ranks, or null if this process has opened the store alone.
  CommunicatorBinding* communicator() const { return communicator_.get(); }
  /// Returns the value of `work(store)`, which runs without the GIL, or raises its error. The store
  /// cannot be closed during the call. Requires the GIL.
  template <typename Work>
  auto Use(const Work& work) const {
    process_.Check();
    return Unwrap(OutsideGil([&] { return UseWithoutGil(work); }));
  }
  /// Returns the value of `work(store, watch)`, which runs as in Use, or raises its error, or the
  /// exception of a signal handler. Requires the GIL.
  template <typename Work>
  auto UseWatched(const Work& work) const {
    process_.Check();
    SignalWatch watch;
    auto result = OutsideGil([&] {
      return UseWithoutGil([&](core::CheckpointStore& store) { return work(store, watch); });
    });
    watch.Rethrow();
    return Unwrap(std::move(result));
  }
  /// Returns the value of `work(snapshot)`, or raises its error, for the newest snapshot. Requires
  /// the GIL, and calls `work` without it.
  template <typename Work>
  auto AskLatest(const Work& work) const {
    using Returned = std::invoke_result_t<Work, const kv::Snapshot&>;
    using Asked = std::conditional_t<kIsResult<Returned>, Returned, Result<Returned>>;
    return Use([&](core::CheckpointStore& store) -> Asked {
      CAIRN_TRY_ASSIGN(const auto snapshot, store.kv().Latest());
      return work(std::as_const(*snapshot));
    });
  }

 private:
  /// Returns `work(store)`. The store cannot be closed during the call. Requires that the caller
  /// has released the GIL and called process_.Check.
  template <typename Work>
  auto UseWithoutGil(const Work& work) const {
    using Returned = decltype(work(*store_));
    const auto closed = [] {
      return Returned(Fail(ErrorCode::kFailedPrecondition, "the store is closed; open it again"));
    };
    if (closing_count_ > 0) return closed();
    const std::shared_lock open(close_mutex_);
    if (!store_) return closed();
    return work(*store_);
  }

  /// Returns the lock of close_mutex_, not locked yet. In a function that runs during a call, locks
  /// it, or raises Invalid if a call of this store is running: the close would wait for itself.
  std::unique_lock<std::shared_mutex> LockToClose();

  ProcessGuard process_;
  std::shared_ptr<CommunicatorBinding> communicator_;  // shared with Python; outlives store_
  // Guards store_ and has_met_ranks_: calls hold it shared, Close and Abandon hold it exclusively.
  // Both mutexes are only taken without the GIL, and close_mutex_ is taken first.
  mutable std::shared_mutex close_mutex_;
  // Threads that wait for close_mutex_ to close the store. Then no call begins: the calls of
  // several threads would otherwise overlap without end.
  std::atomic<int> closing_count_ = 0;
  // Shared with the parts of steps that Store.writer writes. They end before the store is closed.
  std::shared_ptr<core::CheckpointStore> store_;
  bool has_met_ranks_ = false;  // in a close, which is repeated alone
  Mutex saver_mutex_;           // AsyncSaver allows one caller at a time
  std::unique_ptr<core::AsyncSaver> saver_ CAIRN_GUARDED_BY(saver_mutex_);
};

}  // namespace cairn::python
