#pragma once
/// The front door: save, load and look into checkpoints of whole state dicts.
///
///   CAIRN_TRY_ASSIGN(auto store, CheckpointStore::Open("runs/gpt", kv::OpenMode::kWrite));
///   CAIRN_TRY_ASSIGN(auto report, store->Save(100, state));

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/progress.h"
#include "core/inspect/diff.h"
#include "core/load/load_options.h"
#include "core/ranks/communicator.h"
#include "core/save/save_options.h"
#include "core/state_dict/key_pattern.h"
#include "core/state_dict/state_dict.h"
#include "core/step/contents.h"
#include "kv/options.h"
#include "kv/step_info.h"
#include "kv/store.h"

namespace cairn::core {

namespace internal {
struct RankInWorld;
struct SaveAttempt;
struct SavePlan;
struct SavedChunks;
class DeviceSave;
}  // namespace internal

/// Threads: const members may run from many threads; Save and Delete are serialised inside.
class CheckpointStore {
 public:
  /// `address`: PATH or file:PATH. Errors as kv::Store::Open; kUnimplemented for other schemes.
  static Result<std::unique_ptr<CheckpointStore>> Open(const std::string& address,
                                                       kv::OpenMode mode,
                                                       kv::StoreOptions options = {});
  /// Opens the store for all ranks of `communicator`: rank 0 for writing, the others so that they
  /// write their parts of its steps (or, with kRead, each for reading). Every rank calls it, and
  /// gets the store, or every rank an error, with the rank that it comes from. From then on every
  /// rank calls Save with what it holds, in the same order; nothing is exchanged but files, so a
  /// save never competes with the job's own collectives. The communicator is used here, by Close
  /// and where a load is told to, and must outlive the store. kInvalidArgument: not a directory
  /// that all ranks share.
  static Result<std::unique_ptr<CheckpointStore>> OpenShared(const std::string& address,
                                                             kv::OpenMode mode,
                                                             Communicator& communicator,
                                                             kv::StoreOptions options = {});
  ~CheckpointStore();

  uint32_t rank() const;
  uint32_t world_size() const;

  kv::Store& kv() const;
  Result<std::vector<kv::StepInfo>> Steps() const;

  /// Writes `state` as `step`; durable when it returns. Memory beyond the caller's: the block pool
  /// (IoOptions) and the records of one segment. kInvalidArgument: bad tensors, duplicate FQNs.
  ///
  /// Several ranks: a tensor with a Sharding is the part of it that this rank holds, any other
  /// tensor and value one that all ranks hold alike. The step exists once all parts are there, tile
  /// their tensors and agree; else every rank gets an error: kInvalidArgument names key, ranks and
  /// boxes, an error of one rank names it, kUnavailable the ranks that were missing at the
  /// deadline.
  Result<SaveReport> Save(uint64_t step, const StateDict& state, const SaveOptions& options = {});

  /// Keys of `step` (or the latest) that `patterns` select. kNotFound: no such step.
  Result<Contents> List(std::optional<uint64_t> step, const KeyPatterns& patterns = {}) const;
  /// One tensor's record, without listing anything. kNotFound: no such tensor; names close ones.
  Result<TensorInfo> FindTensor(const kv::StepInfo& step, const std::string& fqn) const;
  /// What a front end has kept with the step under its name (core/step_part.h), or nothing.
  Result<std::optional<std::vector<std::byte>>> FindExtension(const kv::StepInfo& step,
                                                          std::string_view name) const;
  /// Chunks of one tensor, in key order; none for an alias.
  Result<std::vector<ChunkInfo>> Chunks(const kv::StepInfo& step, const std::string& fqn) const;

  /// Fills all targets; every byte is checked against its page digest first read. All requests are
  /// checked (key, dtype, box) before any target is touched. After an error targets are
  /// unspecified. Targets in device memory are written behind what `streams` hold (for devices that
  /// are not named, the default stream) and may be used on any stream when it returns.
  Result<LoadReport> Load(const kv::StepInfo& step, std::span<const LoadRequest> requests,
                          const Progress& progress = {},
                          std::span<const DeviceStream> streams = {}) const;

  /// Load for any mesh: fills this rank's part of each tensor. kInvalidArgument: a global shape
  /// that is not the stored one, a local tensor that mesh and placements do not make, or as Load.
  Result<LoadReport> LoadShards(const kv::StepInfo& step, std::span<const ShardTarget> targets,
                                const ShardLoadOptions& options = {}) const;

  /// The bytes of many tensors without a copy; nothing for a tensor whose chunks do not lie one
  /// behind another in one segment (after an incremental save) or that is a strided alias. Each
  /// segment is mapped once, whatever the number of tensors. With `verify` every page of them is
  /// checked now, on all cores, else never.
  Result<std::vector<std::optional<MappedTensor>>> Map(const kv::StepInfo& step,
                                                       std::span<const std::string> fqns,
                                                       bool verify = true,
                                                       const Progress& progress = {}) const;

  Result<Diff> Compare(uint64_t step_a, uint64_t step_b, const KeyPatterns& patterns = {}) const;
  Result<kv::Store::DeleteReport> Delete(std::span<const uint64_t> steps, bool dry_run = false);

  /// Reads every byte of the given step, or of all, and checks every digest and record. `damage` is
  /// called for each problem; bytes shared by steps are read once. Returns payload bytes read.
  Result<uint64_t> Verify(std::optional<uint64_t> step,
                          const std::function<void(const kv::Damage&)>& damage,
                          const Progress& progress = {}) const;

  /// Several ranks: every rank calls it, once its saves are done.
  Result<void> Close();

 private:
  friend class AsyncSaver;  // saves a plan that it has staged
  internal::RankInWorld place() const;
  /// Every save of several ranks begins with it, on each of them.
  internal::SaveAttempt NextAttempt(uint64_t step, const SaveOptions& options);
  /// A save that fails before SavePlanned: lets the other ranks know, and returns the error.
  Error Abort(const internal::SaveAttempt& attempt, Error error);
  /// `device` for a plan that has tensors in device memory.
  Result<SaveReport> SavePlanned(const internal::SaveAttempt& attempt, internal::SavePlan& plan,
                                 const SaveOptions& options, internal::SavedChunks* saved,
                                 internal::DeviceSave* device);

  class Impl;
  explicit CheckpointStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::core
