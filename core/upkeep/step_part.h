#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Writes a step for a front end that coordinates the ranks itself, such as
/// torch.distributed.checkpoint: its coordinator assigns to each rank what to write, learns from
/// each that it has done so, and then commits the step.
///
///   rank 0:         StepPart::OpenSession(store, step, world_size) -> ticket, sent to all ranks
///   every rank:     StepPart::Begin(store, ticket, rank, options); Add(portion) ...
///   ranks 1 and up: Prepare()
///   rank 0, after all others have prepared: Commit(frame)
///
/// Rank 0 has the store open for writing; the others have it open with OpenMode::kJoinSession and
/// the ticket's session. Ranks communicate through files only.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/device/device.h"
#include "core/state_dict/state_dict.h"

namespace cairn::core {

/// The parameters that all ranks of one step share.
struct StepTicket {
  uint64_t step = 0;
  uint32_t world_size = 1;
  std::string session;  // kv::StoreOptions::session of the other ranks; empty for one rank
  std::string attempt;
};

/// One element of a key path: a key of a dict, or a position in a list.
struct PathElement {
  std::string text;
  bool is_position = false;
};

/// Parameters that only the coordinator knows: the nesting of the step's tree, and data of the
/// front end.
struct StepFrame {
  /// The path from the root to the leaf or container that ranks have added under a key of the root.
  /// The texts of the path, joined by ".", are that key. Keys without a path stay at the root, and
  /// so do all keys if paths contradict each other.
  std::map<std::string, std::vector<PathElement>> paths;
  std::vector<Extension> extensions;
};

/// One rank's part of a step. Destroying it before Prepare or Commit abandons the part. After an
/// error of Add the part is abandoned too, and every further call returns that error.
///
/// Threads: one at a time. `store` must outlive the part, and no other save of it may run
/// concurrently.
class StepPart {
 public:
  /// Rank 0: names the attempt and opens the session that the other ranks join.
  /// kFailedPrecondition: the store is open for reading. kUnavailable: storage fails.
  static Result<StepTicket> OpenSession(CheckpointStore& store, uint64_t step, uint32_t world_size);

  /// Begins the part of `rank`. `options.deadline` is the time from now on within which the step
  /// must be committed; `options.replicated_mesh`, `streams` and `device_snapshot` are ignored.
  /// kInvalidArgument: `rank` is not below the world size. kConflict: the step exists and
  /// `options.overwrite` is false (rank 0). kFailedPrecondition: the store is open for reading, or
  /// another save of it is running.
  static Result<std::unique_ptr<StepPart>> Begin(CheckpointStore& store, const StepTicket& ticket,
                                                 uint32_t rank, const SaveOptions& options);
  ~StepPart();

  /// Writes what this rank was assigned: tensors with explicit boxes (core/tensor/sharding.h),
  /// whose boxes no other rank writes; whole tensors; and values. Requires that the root is a dict.
  /// Portions of one rank have no key in common. Tensors in device memory are read where they are,
  /// ordered after `streams` as for SaveOptions::streams; if the base step has the bytes of a
  /// chunk, only digests leave the device. When the call returns, with or without an error, the
  /// memory is the caller's again. Errors: see CheckpointStore::Save.
  Result<void> Add(StateDict portion, std::span<const DeviceStream> streams = {});

  /// Makes this part durable, so that rank 0 may commit it.
  Result<SaveReport> Prepare();
  /// Rank 0: merges all parts, checks that they agree and tile their tensors, and commits the step.
  /// kInvalidArgument names key, ranks and boxes where they do not; kUnavailable names the ranks
  /// whose parts are missing at the deadline. An error of another rank is returned with its name.
  Result<SaveReport> Commit(const StepFrame& frame);
  /// Reports to rank 0 why this rank gives up, if the front end does not. Best effort.
  void Abort(const Error& error);

 private:
  class Impl;
  explicit StepPart(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns `tree` with the children of its root moved to `paths`. Requires that the root is a dict.
/// kInvalidArgument: two paths contradict each other.
Result<StateTree> NestTree(const StateTree& tree,
                           const std::map<std::string, std::vector<PathElement>>& paths);

}  // namespace cairn::core
