#pragma once
/// core/step_part.h for cairn/dcp: a store that is opened to write one rank's part of one step.

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/step_part.h"
#include "python/src/errors.h"
#include "python/src/flatten.h"
#include "python/src/process_guard.h"

namespace cairn::python {

namespace nb = nanobind;

/// Opened by rank 0 (no session) or by another rank that has its ticket, for one attempt. Closed by
/// the destructor, which gives up what was not handed in or committed.
///
/// Threads: one at a time, and a call beside another raises Conflict; all members but the
/// constructor raise Invalid in a forked child.
class StepPartBinding {
 public:
  StepPartBinding(const std::string& address, const std::string& session);
  ~StepPartBinding();

  /// (step, world size, session, attempt)
  nb::tuple OpenSession(uint64_t step, uint32_t world_size);
  std::vector<uint64_t> Steps() const;
  void Begin(nb::tuple ticket, uint32_t rank, bool overwrite, std::optional<uint64_t> chunk_bytes);
  /// `shards`: FQN -> (dtype code, sharding with explicit boxes, for ToSharding), beside the leaves
  /// of `batch`, whose keys are FQNs. The caller keeps the memory of `shards` alive.
  void Add(Batch& batch, nb::dict shards, const std::vector<core::DeviceStream>& streams);
  /// The report as a tuple.
  nb::tuple Prepare();
  /// `paths`: FQN -> tuple of str (keys) and int (positions); `extensions`: name -> bytes.
  nb::tuple Commit(nb::dict paths, nb::dict extensions);
  void Abort(nb::str reason);
  void Close();

 private:
  /// Marks this as used while it lives. Raises Conflict if it is already, Invalid after a fork.
  class Turn;
  core::StepPart& part() const;

  ProcessGuard process_;
  std::unique_ptr<core::CheckpointStore> store_;
  std::unique_ptr<core::StepPart> part_;
  SignalWatch* watch_ = nullptr;  // of the call that runs
  mutable std::atomic<bool> in_use_ = false;
};

void BindStepPart(nb::module_& m);

}  // namespace cairn::python
