#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A store of checkpoints: saves state dicts as numbered steps, loads them, and inspects them. This
/// is the top of the C++ API.
///
///   StateDict state;                                         // borrows the tensors
///   state.root().Tensor("model.wte.weight", view);
///   CAIRN_TRY_ASSIGN(auto store, CheckpointStore::Open("runs/gpt", kv::OpenMode::kWrite));
///   CAIRN_TRY_ASSIGN(const SaveReport saved, store->Save(100, state));
///
///   CAIRN_TRY_ASSIGN(const Contents contents, store->List(100));
///   const LoadRequest request{
///       .fqn = "model.wte.weight", .box = WholeBox(shape), .target = target};
///   CAIRN_TRY_ASSIGN(const LoadReport loaded, store->Load(contents.step, {&request, 1}));
///
/// A step exists completely or not at all: a save that fails, or a process that dies, leaves the
/// steps that existed before. Chunks of tensors that have not changed since the base step are
/// stored once and referenced by both steps.
///
/// Other entry points: AsyncSaver (core/async_save.h) saves in the background; StepPart
/// (core/upkeep/step_part.h) writes a step for a front end that coordinates the ranks itself.
///
/// Errors: kDataLoss means that stored bytes or records are damaged; the error names the key, step,
/// file and offset. Every call that reads returns kUnavailable if storage fails.

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
#include "core/load/load_options.h"
#include "core/ranks/communicator.h"
#include "core/rewrite/step_edit.h"
#include "core/rewrite/step_merge.h"
#include "core/save/save_options.h"
#include "core/state_dict/key_pattern.h"
#include "core/state_dict/state_dict.h"
#include "core/step/contents.h"
#include "kv/base/options.h"
#include "kv/base/step_info.h"
#include "kv/maintain/compact_options.h"
#include "kv/storage/storage.h"
#include "kv/store.h"

namespace cairn::core {

struct UncheckedMap;

namespace internal {
struct RankInWorld;
struct SaveAttempt;
struct SavePlan;
struct LastSave;
struct SavedChunks;
class DeviceSave;
class TreeCache;
class CompressionRates;
}  // namespace internal

/// Ownership: owns the files and locks of the store; borrows the communicator, if there is one.
/// Threads: const members may run from many threads at the same time, also during a Save. Save,
/// Delete and Close wait for each other.
class CheckpointStore {
 public:
  /// Opens the store at `address` (kv/storage/open/open_storage.h lists the kinds) for this process
  /// alone; kWrite creates it if it does not exist. kNotFound: there is no store (kRead).
  /// kConflict: another process has it open for writing. kUnimplemented: a newer format. kDataLoss:
  /// the store is damaged. kInvalidArgument: the address or the options are not valid.
  static Result<std::unique_ptr<CheckpointStore>> Open(const std::string& address,
                                                       kv::OpenMode mode,
                                                       kv::StoreOptions options = {});

  /// Opens the store in `storage`, which has no address (kv::Store::Open).
  static Result<std::unique_ptr<CheckpointStore>> Open(std::shared_ptr<kv::Storage> storage,
                                                       kv::OpenMode mode,
                                                       kv::StoreOptions options = {});

  /// Opens the store for all ranks of `communicator`. With kWrite, rank 0 opens it for writing and
  /// the others join its session, so that they can write their parts of its steps; with kRead, each
  /// rank opens it for reading. Collective: every rank calls it, and either all of them get the
  /// store or all of them get an error, which names the rank that failed.
  ///
  /// Afterwards every rank calls Save with the part of the state that it holds, in the same order.
  /// Ranks that save communicate through files only, so that a save never competes with the
  /// collectives of the job. The communicator is used here, by Close, and by loads with
  /// ShardLoadOptions::read_once; it must outlive the store.
  ///
  /// Errors: see Open; also kInvalidArgument: the ranks do not share the directory.
  static Result<std::unique_ptr<CheckpointStore>> OpenShared(const std::string& address,
                                                             kv::OpenMode mode,
                                                             Communicator& communicator,
                                                             kv::StoreOptions options = {});
  ~CheckpointStore();

  /// This process among the ranks of OpenShared; rank 0 of 1 after Open.
  uint32_t rank() const;
  uint32_t world_size() const;

  /// The store of keys and bytes below this one.
  kv::Store& kv() const;
  /// All committed steps, ascending by number.
  Result<std::vector<kv::StepInfo>> Steps() const;
  /// Returns the numbers of the committed steps, in ascending order. Cost: as Store::Latest.
  Result<std::vector<uint64_t>> StepNumbers() const;

  /// Writes `state` as `step`, which is durable when the call returns. Tensors are borrowed until
  /// then, and must not change. If other threads change one, the save fails with kInvalidArgument,
  /// or the step contains old and new values, of which each page has its digest. Memory, in
  /// addition to the caller's: the block pools (kv::IoOptions) and the records of one segment.
  ///
  /// In a multi-rank store, a tensor with a Sharding is the part that this rank holds; every other
  /// tensor and value is the same on all ranks (for tensors: on the ranks of
  /// SaveOptions::replicated_mesh). The step is committed once all ranks have written their parts,
  /// and the parts agree and tile their tensors. Otherwise every rank gets an error, which names
  /// the rank that failed.
  ///
  /// kInvalidArgument: bad tensors, duplicate FQNs, or ranks that disagree; names key, ranks and
  /// boxes. kConflict: the step exists and `options.overwrite` is false; or the grace period of the
  /// store is so short that a compaction has removed what the base step used, and the save can be
  /// repeated. kNotFound: there is no
  /// step `options.base_step`. kFailedPrecondition: the store is open for reading. kUnavailable:
  /// storage fails, or ranks are missing at the deadline; names them. kCancelled:
  /// `options.progress` asked to stop. kResourceExhausted: not enough memory.
  Result<SaveReport> Save(uint64_t step, const StateDict& state, const SaveOptions& options = {});

  /// Commits the step `into` with the records of the step `source` after `edit`. No payload is read
  /// or written: the new step refers to the bytes of its sources, which may be deleted afterwards.
  /// Without changes it is a copy of `source`. If no key changes, it has the extensions of `source`
  /// (core/upkeep/step_part.h). Not collective: rank 0 of a multi-rank store calls it alone.
  /// Memory: the records of the sources.
  ///
  /// kNotFound: there is no such step, or a key or pattern of `edit` selects nothing.
  /// kInvalidArgument: two keys would be equal, or a list would have gaps; names the key.
  /// kConflict: the step `into` exists, or a source was deleted or replaced during the call.
  /// kFailedPrecondition: the store is open for reading, or a save is running.
  Result<kv::StepInfo> Edit(uint64_t source, uint64_t into, const StepEdit& edit);

  /// Commits the step `into`: its floating-point tensors are the weighted means of the tensors of
  /// `steps`. Everything else, including the chunk grids, comes from the last of `steps`. The steps
  /// have the same keys, with the same dtypes and shapes; they may be sharded differently.
  /// docs/merging.md defines the arithmetic, whose result depends on nothing else. Chunks that are
  /// equal in all steps are references. Not collective: rank 0 of a multi-rank store calls it
  /// alone. Memory: 24 MiB, loads of 4 MiB, and the records of two steps.
  ///
  /// kInvalidArgument: fewer than two steps, or one is named twice; keys, dtypes, shapes or shared
  /// memory of the steps differ; they differ in a tensor of 8-bit or 4-bit floats; or the weights
  /// have no positive sum. kNotFound: there is no such step. kConflict: the step `into` exists, or
  /// one of the steps was deleted or replaced during the call. kCancelled: `options.progress` asked
  /// to stop. kFailedPrecondition: the store is open for reading, or a save is running.
  Result<MergeReport> Merge(std::span<const uint64_t> steps, uint64_t into,
                            const MergeOptions& options = {});

  /// Lists the keys of `step`, or of the latest step, that `patterns` select. Reads records, but no
  /// payload; LoadValues reads the bytes of long values. kNotFound: there is no such step. Cost:
  /// linear in the number of keys of the step. If no inclusion of `patterns` has a wildcard, only
  /// reads the step's structure and the listed keys; the store keeps the structure (up to 64 MiB,
  /// and 8 bytes per key) for such lists of this step and of steps with the same structure.
  Result<Contents> List(std::optional<uint64_t> step, const KeyPatterns& patterns = {}) const;
  /// Calls the visitors with the tensors and values of a step that `patterns` select, in key order,
  /// and then with the hidden tensors that selected ones need. So the first key is known long
  /// before the last one is read. Then checks aliases, as List does. Requires that `step` was found
  /// in this store. Memory: the values and aliases.
  Result<void> ForEachKey(const kv::StepInfo& step, const KeyPatterns& patterns,
                          const TensorVisitor& on_tensor, const ValueVisitor& on_value) const;
  /// Returns the record of one tensor. Cost: one lookup. kNotFound: there is no such tensor; the
  /// error suggests similar keys.
  Result<TensorInfo> FindTensor(const kv::StepInfo& step, const std::string& fqn) const;
  /// Returns the data that a front end stored with the step under `name`
  /// (core/upkeep/step_part.h), or nothing if there is none.
  Result<std::optional<std::vector<std::byte>>> FindExtension(const kv::StepInfo& step,
                                                              std::string_view name) const;

  /// Returns the names of the records of applications that the step has (SaveOptions::records,
  /// StepEdit::records), in the order of their bytes.
  Result<std::vector<std::string>> ListRecords(const kv::StepInfo& step) const;
  /// Returns the bytes of one of these records. kNotFound: there is no record of this name.
  Result<std::vector<std::byte>> ReadRecord(const kv::StepInfo& step,
                                            const std::string& name) const;

  /// Returns the chunks of one tensor in key order; none for an alias. kNotFound: there is no such
  /// tensor.
  Result<std::vector<ChunkInfo>> Chunks(const kv::StepInfo& step, const std::string& fqn) const;

  /// Calls `visit` with the chunks of `tensors`, in key order; an alias has none. Requires that
  /// `tensors` belong to `step` and ascend by FQN. Cost: reads their chunk records, and one lookup
  /// for each tensor that does not follow the one before.
  Result<void> ForEachChunk(const kv::StepInfo& step, std::span<const TensorInfo> tensors,
                            const ChunkVisitor& visit) const;

  /// Fills all targets. Every page is checked against its digest before its bytes are copied to a
  /// target, or, if storage is read directly into the target, before the call returns.
  ///
  /// All requests are checked before any target is written. After an error the contents of the
  /// targets are unspecified. Writes to targets in device memory are ordered after the work that
  /// `streams` contain when the call begins (for devices that are not named: the default stream);
  /// when the call returns, the targets may be used on any stream.
  ///
  /// The records of `known` tensors are not read again, if all requested tensors are among them.
  /// Requires that they belong to `step` and ascend by FQN, as in the result of List.
  ///
  /// kNotFound: there is no such tensor, or the step was deleted. kInvalidArgument: the dtype is
  /// not the stored one, the box is not inside the tensor, or the target does not fit the box.
  /// kDataLoss: bytes do not match their digests. kCancelled: `progress` asked to stop.
  Result<LoadReport> Load(const kv::StepInfo& step, std::span<const LoadRequest> requests,
                          const Progress& progress = {}, std::span<const DeviceStream> streams = {},
                          std::span<const TensorInfo> known = {}) const;

  /// Loads tensors and values as Load and LoadValues do, for a check or an export: the next save
  /// does not continue from the step.
  Result<LoadReport> Examine(const kv::StepInfo& step, std::span<const LoadRequest> requests,
                             std::span<ValueInfo> values = {}) const;

  /// Replaces each ChunkedValue of `values`, such as those that List returns, by the whole value.
  /// Requires that they belong to `step` and have different FQNs. Every page is checked. kDataLoss:
  /// bytes are missing or do not match their digests. kNotFound: the step was deleted. kCancelled:
  /// `progress` asked to stop. kResourceExhausted: there is not enough memory. Memory: the values.
  Result<void> LoadValues(const kv::StepInfo& step, std::span<ValueInfo> values,
                          const Progress& progress = {}) const;

  /// Fills this rank's part of each tensor, on any mesh, whatever the mesh of the save was. After
  /// an error the contents of the targets are unspecified. Collective if `options.read_once` is set
  /// and there are several ranks. kInvalidArgument: the global shape is not the stored one, or the
  /// local tensor does not have the shape that mesh and placements define. Other errors: see Load,
  /// and with `read_once` the communicator.
  Result<LoadReport> LoadShards(const kv::StepInfo& step, std::span<const ShardTarget> targets,
                                const ShardLoadOptions& options = {}) const;

  /// Updates targets that contain the bytes of the step `base` to the bytes of `step`. Reads only
  /// differences: pages of 64 KiB of contiguous tensors in host memory, complete tensors otherwise.
  /// Tensors that are read page by page are first compared with `base`, all of them before the
  /// first is written. After another error, they may contain pages of both steps. For requests, see
  /// Load.
  ///
  /// kInvalidArgument: a tensor does not contain the bytes of `base`; names it. kNotFound: `base`
  /// or `step` was deleted. Other errors: see Load.
  Result<UpdateReport> Update(const kv::StepInfo& base, const kv::StepInfo& step,
                              std::span<const LoadRequest> requests, const Progress& progress = {},
                              std::span<const DeviceStream> streams = {}) const;

  /// Maps the bytes of many tensors without a copy. The result for a tensor is empty if its bytes
  /// are not contiguous in one segment, as after an incremental save, or if it is a strided alias.
  /// Each segment is mapped once, for all tensors in it. With `verify`, every page of the tensors
  /// is checked now, on all cores; otherwise the bytes are not checked. kNotFound: there is no such
  /// tensor. kDataLoss: bytes do not match their digests.
  Result<std::vector<std::optional<MappedTensor>>> Map(const kv::StepInfo& step,
                                                       std::span<const std::string> fqns,
                                                       bool verify = true,
                                                       const Progress& progress = {}) const;

  /// As Map without `verify`, and returns the check, which may run later on another thread. Until
  /// it has returned, damaged bytes are not noticed.
  Result<UncheckedMap> MapUnchecked(const kv::StepInfo& step,
                                    std::span<const std::string> fqns) const;

  /// Deletes whole steps atomically, and the segments that no other step references. With `dry_run`
  /// it only reports what it would delete. kNotFound: one of the steps does not exist; none is
  /// deleted then.
  Result<kv::Store::DeleteReport> Delete(std::span<const uint64_t> steps, bool dry_run = false);

  /// Rewrites the segments of which steps use only a part, while saves, deletes and readers
  /// continue; see kv::Compact. Chunks with deltas are written without deltas if their earlier
  /// version has no other use. With `compress`, chunks are compressed where this saves at least a
  /// 20th of their bytes. The callbacks for this in `options` are ignored. One process: not
  /// collective; rank 0 of a multi-rank store may call it. kFailedPrecondition: also if the store
  /// is being closed.
  Result<kv::CompactReport> Compact(kv::CompactOptions options = {}, bool compress = false);

  /// Reads every byte of `step`, or of all steps, and checks every digest and record. Calls
  /// `damage` for each problem and continues. Bytes that steps share are read once. Returns the
  /// payload bytes read. `record_progress` counts the records of tensors and chunks, which are
  /// checked first, `progress` the payload. kResourceExhausted: not everything was checked, because
  /// this process lacks memory or file descriptors. kCancelled: one of the two asked to stop. Other
  /// errors: the store cannot be read at all.
  Result<uint64_t> Verify(std::optional<uint64_t> step,
                          const std::function<void(const kv::Damage&)>& damage,
                          const Progress& progress = {},
                          const Progress& record_progress = {}) const;

  /// Releases the store and its lease. Collective in a multi-rank store: every rank calls it after
  /// its last save; a call that is repeated after an error does not wait for the others again.
  /// Errors: see kv::Store::Close. The destructor does the same without waiting for other ranks,
  /// and ignores errors.
  Result<void> Close();

 private:
  friend class AsyncSaver;  // saves a plan that it has staged
  friend class StepPart;    // measures its portions
  internal::RankInWorld rank_in_world() const;
  internal::TreeCache& trees() const;
  internal::CompressionRates& rates() const;
  /// Begins a save. In a multi-rank store every rank calls it for every save.
  internal::SaveAttempt NextAttempt(uint64_t step, const SaveOptions& options);
  /// Ends a save that failed before SavePlanned: reports `error` to the other ranks and returns it.
  Error Abort(const internal::SaveAttempt& attempt, Error error);
  /// `device` is not null if the plan has tensors in device memory.
  Result<SaveReport> SavePlanned(const internal::SaveAttempt& attempt, internal::SavePlan& plan,
                                 const SaveOptions& options, internal::SavedChunks* saved,
                                 internal::DeviceSave* device, bool has_same_records = false);

  /// Returns what is remembered of the last save, or nothing if another one is running.
  std::unique_ptr<internal::LastSave> TakeLastSave();
  /// `has_plan`: the chunks are those of the last plan. Otherwise it is forgotten.
  void RememberSave(std::unique_ptr<internal::LastSave> save, bool has_plan);

  struct Impl;
  CheckpointStore(std::unique_ptr<kv::Store> store, Communicator* communicator);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::core
