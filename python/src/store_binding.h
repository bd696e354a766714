#pragma once
/// The store as cairn/store.py sees it: one object for CheckpointStore, AsyncSaver and their life.

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "python/src/communicator_binding.h"
#include "python/src/errors.h"
#include "python/src/load_plan.h"
#include "python/src/process_guard.h"
#include "python/src/step_contents.h"

namespace cairn::python {

namespace nb = nanobind;

/// (step, logical bytes, written bytes, chunks, chunks reused, seconds).
nb::tuple ToPyReport(const core::SaveReport& report);

/// Threads: any; each waits without the GIL.
class SaveHandleBinding {
 public:
  explicit SaveHandleBinding(core::SaveHandle handle) : handle_(std::move(handle)) {}
  void WaitStaged() const;
  /// What the stream of that address on `device` gets from here on runs after the copies of that
  /// device. Waits until they are enqueued.
  void MakeStreamWait(int device, uintptr_t stream) const;
  /// Waits for the end, at most `timeout_seconds` if given; true if the save has ended. Runs signal
  /// handlers meanwhile.
  bool Wait(std::optional<double> timeout_seconds) const;
  bool done() const;
  /// The report as a tuple, or raises what went wrong. Waits.
  nb::tuple Report() const;

 private:
  core::SaveHandle handle_;
  ProcessGuard process_;
};

/// A mapped tensor; the arrays made from it keep it, and so the mapping, alive.
class MappedBinding {
 public:
  explicit MappedBinding(core::MappedTensor tensor) : tensor_(std::move(tensor)) {}
  const core::MappedTensor& tensor() const { return tensor_; }

 private:
  core::MappedTensor tensor_;
};

/// Threads: any member from any thread; all but construction and Close may overlap. In a forked
/// child every member raises Invalid and the destructor leaves what belongs to the parent alone.
class StoreBinding {
 public:
  /// `communicator`: null for this process alone, else that of the ranks that open it together.
  StoreBinding(const std::string& address, bool writable,
               std::shared_ptr<CommunicatorBinding> communicator);
  ~StoreBinding();

  nb::tuple Save(uint64_t step, const core::StateDict& state, core::SaveOptions options);
  SaveHandleBinding SaveAsync(uint64_t step, const core::StateDict& state,
                              const core::SaveOptions& options);
  nb::list Steps() const;
  StepContents List(std::optional<uint64_t> step, nb::list patterns) const;
  /// The bytes that a front end has kept with the step, or None.
  nb::object FindExtension(const kv::StepInfo& step, nb::str name) const;
  /// `read_once` as core::ShardLoadOptions has it; only for a store of several ranks. The streams
  /// are of the devices that are loaded into.
  nb::tuple Load(const kv::StepInfo& step, const Requests& requests, bool read_once,
                 const DeviceWay& way) const;
  /// For each TensorInfo of `tensors` its mapped bytes, or None where they cannot be mapped: a
  /// torch tensor of its dtype and shape if `as_torch` (a bool for each) says so and torch can be
  /// lent memory of that dtype, else a MappedBinding.
  nb::list Map(const kv::StepInfo& step, nb::list tensors, nb::list as_torch, bool verify) const;
  nb::tuple Compare(uint64_t step_a, uint64_t step_b, nb::list patterns) const;
  nb::tuple Delete(nb::handle steps, bool dry_run);
  /// Waits for a running asynchronous save, then releases the store. May be called again. Several
  /// ranks: waits for the others first.
  void Close();
  /// The same without waiting for other ranks: after an error they may never come.
  void Abandon();

 private:
  /// Runs `work(store)` without the GIL while the store cannot be closed. Requires the GIL.
  template <typename Work>
  auto Use(const Work& work) const;
  Result<core::LoadReport> RunLoad(core::CheckpointStore& store, const kv::StepInfo& step,
                                   const Requests& requests, bool read_once, const DeviceWay& way,
                                   SignalWatch& watch) const;

  ProcessGuard process_;
  std::shared_ptr<CommunicatorBinding> communicator_;  // shared with Python; outlives store_
  mutable std::shared_mutex close_mutex_;  // exclusively for Close; taken without the GIL only
  std::unique_ptr<core::CheckpointStore> store_;
  std::mutex saver_mutex_;  // AsyncSaver takes one caller at a time
  std::unique_ptr<core::AsyncSaver> saver_;
};

}  // namespace cairn::python
