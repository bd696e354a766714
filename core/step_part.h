#pragma once
/// A step by ranks that agree by means of their own: a front end with a coordinator, such as
/// torch.distributed.checkpoint, tells each rank what to write, hears from each that it has, and
/// then says that the step is whole.
///
///   rank 0:   StepPart::OpenSession(store, step)  -> a ticket, which it passes to all ranks
///   all:      StepPart::Begin(store, ticket, rank); Add(portion) ...
///   others:   Prepare()
///   rank 0, once all have handed in: Commit()
///
/// Rank 0 has the store open for writing, the others with kJoinSession and the ticket's session. Nothing
/// is exchanged but files. A part that is destroyed before Prepare or Commit is as if never begun.

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

/// What ranks need to know of each other.
struct StepTicket {
  uint64_t step = 0;
  uint32_t world_size = 1;
  std::string session;  // StoreOptions::session of the others; empty for one rank
  std::string attempt;
};

/// One element of a key path: a key of a dict, or the position in a list.
struct PathElement {
  std::string text;
  bool is_position = false;
};

/// What the coordinator alone knows of the step as a whole.
struct StepFrame {
  /// Where the leaf or container that ranks have added under a key of the root belongs: the way
  /// from the root to it, its texts joined by "." being that key. Keys that are not here, or whose
  /// paths do not agree with each other, stay at the root.
  std::map<std::string, std::vector<PathElement>> paths;
  std::vector<Extension> extensions;
};

/// Threads: one at a time. `store` outlives it, and no other save of it runs meanwhile. After an
/// error of Add the part is as if never begun, and every further call gives that error.
class StepPart {
 public:
  /// Rank 0. kFailedPrecondition: a reader. Otherwise as Store::OpenSession.
  static Result<StepTicket> OpenSession(CheckpointStore& store, uint64_t step, uint32_t world_size);

  /// Errors as Store::Begin. `options.deadline`, from now on, is that of the commit;
  /// `options.plain_mesh`, `streams` and `device_snapshot` are not looked at.
  static Result<std::unique_ptr<StepPart>> Begin(CheckpointStore& store, const StepTicket& ticket,
                                                 uint32_t rank, const SaveOptions& options);
  ~StepPart();

  /// Writes what this rank has been told to write: tensors with explicit parts (core/sharding/sharding.h),
  /// of which no other rank writes any; whole tensors; and values. The root is a dict, and no two
  /// portions of one rank have a key in common. Tensors in device memory are read where they are,
  /// in the order of `streams` as SaveOptions::streams says; of chunks that the base step has only
  /// digests leave the device. The memory is the caller's again when it returns, whatever it
  /// returns. Errors as CheckpointStore::Save.
  Result<void> Add(StateDict portion, std::span<const DeviceStream> streams = {});

  /// Makes this part durable; from here on rank 0 may commit it.
  Result<SaveReport> Prepare();
  /// Rank 0: joins all parts, checks that they make whole tensors, and commits. Errors as
  /// CheckpointStore::Save by several ranks.
  Result<SaveReport> Commit(const StepFrame& frame);
  /// Lets rank 0 know why this rank gives up, in case that nobody else tells it. Best effort.
  void Abort(const Error& error);

 private:
  class Impl;
  explicit StepPart(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// `tree`, whose root is a dict, with its children moved to where `paths` say. Errors as
/// TreeMerge::Add: two paths that contradict each other.
Result<StateTree> NestTree(const StateTree& tree,
                           const std::map<std::string, std::vector<PathElement>>& paths);

}  // namespace cairn::core
