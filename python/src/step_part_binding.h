#pragma once
/// core/upkeep/step_part.h for cairn/dcp: a store that is opened to write a part of a step.

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/upkeep/step_part.h"
#include "python/src/errors.h"
#include "python/src/flatten.h"
#include "python/src/process_guard.h"
#include "python/src/store_binding.h"

namespace cairn::python {

namespace nb = nanobind;

/// A store and at most one part of a step, for one attempt. The store belongs to a StoreBinding, or
/// is opened for the attempt: rank 0 opens it with an empty session, the other ranks with the
/// session of rank 0's ticket. The destructor aborts a part that was neither prepared nor
/// committed, and closes a store that was opened for it.
///
/// Threads: one at a time; a concurrent call raises Conflict. In a forked child all members except
/// the constructor raise Invalid.
class StepPartBinding {
 public:
  StepPartBinding(const std::string& address, const std::string& session);
  /// Uses the store of `owner`, which must outlive this object and is not closed by it. Raises
  /// Invalid if it is closed.
  explicit StepPartBinding(const StoreBinding& owner);
  ~StepPartBinding();

  /// Returns the ticket (step, world size, session, attempt) of a new attempt.
  nb::tuple OpenSession(uint64_t step, uint32_t world_size);
  std::string Uuid() const;
  std::vector<uint64_t> Steps() const;
  /// Begins the part of `rank`. The deadline of `options`, which limits the commit, is replaced by
  /// 24 hours: the coordinator of the ranks has its own deadlines, and commits when all have
  /// prepared.
  void Begin(nb::tuple ticket, uint32_t rank, core::SaveOptions options);
  /// Begins the part of this rank of the store, in an attempt whose name all ranks derive without
  /// communication. Every rank calls it. The deadline is as in Begin.
  void BeginTogether(uint64_t step, core::SaveOptions options);
  /// Writes the leaves of `batch`, whose keys are FQNs, and `shards`: FQN -> (dtype code, sharding
  /// with explicit boxes in the form of ToSharding). The caller keeps the memory of `shards` alive.
  /// Returns the bytes of the tensors.
  uint64_t Add(Batch& batch, nb::dict shards, const std::vector<core::DeviceStream>& streams);
  /// Makes the part durable.
  core::SaveReport Prepare();
  /// Commits the step. `paths`: FQN -> tuple of str (keys) and int (positions); `extensions`: name
  /// -> bytes.
  core::SaveReport Commit(nb::dict paths, nb::dict extensions);
  /// Informs rank 0 that this rank gave up, and why. Best effort.
  void Abort(nb::str reason);
  /// Aborts an unfinished part, and closes a store that was opened for it. May be called again.
  void Close();

 private:
  /// Marks the object as used. Raises Conflict if it is in use already, and Invalid after a fork.
  class ExclusiveUse;
  /// Raises Invalid if there is no part.
  core::StepPart& part() const;
  /// Requires exclusive use.
  void BeginPart(const core::StepTicket& ticket, uint32_t rank, core::SaveOptions options);

  ProcessGuard process_;
  std::shared_ptr<core::CheckpointStore> store_;  // with the StoreBinding, if it has one
  const bool is_opened_here_ = true;
  std::unique_ptr<core::StepPart> part_;
  SignalWatch* watch_ = nullptr;                // watch of the running Add
  uint64_t added_bytes_ = 0;                    // by the running Add
  std::function<Result<void>()> check_memory_;  // check of the running Add
  mutable std::atomic<bool> in_use_ = false;
};

/// Adds the class StepPart to the extension module.
void BindStepPart(nb::module_& m);

}  // namespace cairn::python
