#pragma once
/// The front door: save, load and look into checkpoints of whole state dicts.
///
///   CAIRN_TRY_ASSIGN(auto store, CheckpointStore::Open("runs/gpt", kv::OpenMode::kWrite));
///   CAIRN_TRY_ASSIGN(auto report, store->Save(100, state));

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor/chunk_grid.h"
#include "core/ranks/communicator.h"
#include "core/device/device.h"
#include "core/state_dict/key_pattern.h"
#include "core/state_dict/state_dict.h"
#include "kv/store.h"

namespace cairn::core {

namespace internal {
struct RankPlace;
struct SaveAttempt;
struct SavePlan;
struct SavedChunks;
class DeviceSave;
}  // namespace internal

/// Told of progress at most every 50 ms from the calling thread; return false to cancel.
using Progress = std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>;

struct SaveOptions {
  bool overwrite = false;
  /// The step whose unchanged chunks are referenced; by default the latest step.
  std::optional<uint64_t> base_step;
  bool incremental = true;  // false: write every byte, compare with nothing
  uint64_t chunk_bytes = kDefaultChunkBytes;
  Progress progress;
  /// Several ranks: the time from the call on within which all must have written their part.
  std::chrono::milliseconds deadline = std::chrono::minutes(30);
  /// Several ranks: those that hold the same plain tensors as this one, which share the writing of
  /// them; by default all. A pipeline stage whose tensors are no DTensors gives its ranks.
  std::shared_ptr<const DeviceMesh> plain_mesh;  // shared with the caller
  /// Tensors in device memory: the streams whose work makes them what is to be saved; nothing else
  /// is waited for. For devices that are not named, the default stream.
  std::vector<DeviceStream> streams;
  /// AsyncSaver: copy what changed within the device's memory first, if so much is free, so that
  /// the streams may go on with their next work once that is done.
  bool device_snapshot = false;
};

/// What this process wrote; of several ranks each tells its own part.
struct SaveReport {
  uint64_t step = 0;
  uint64_t logical_bytes = 0;  // tensors, shared storage counted once
  uint64_t written_bytes = 0;  // payload put into segments
  uint64_t device_bytes = 0;   // payload brought from devices to the host
  uint64_t direct_bytes = 0;   // of written_bytes, what devices wrote to the segments themselves
  uint64_t chunks = 0;
  uint64_t chunks_reused = 0;
  double seconds = 0;
};

struct TensorInfo {
  std::string fqn;
  DType dtype = DType::kUnknown;
  Shape shape;
  uint64_t nbytes = 0;
  uint64_t chunk_count = 0;
  /// Set when the bytes are those of another tensor: element 0 lies alias_offset_bytes into its
  /// row-major payload, and alias_strides (elements) lead on from there.
  std::optional<std::string> alias_of;
  uint64_t alias_offset_bytes = 0;
  std::vector<uint64_t> alias_strides;
  bool hidden = false;  // storage that only aliases refer to; no leaf of its own
};

struct ChunkInfo {
  Box box;
  kv::Extents extents;
  kv::Digest digest;
  uint64_t since_step = 0;  // that wrote the bytes, or the last of them

  uint64_t length_bytes() const { return extents.length_bytes(); }
};

struct ValueInfo {
  std::string fqn;
  Value value;
};

/// What one step holds, or the part of it that patterns selected. No payload has been read.
struct Contents {
  kv::StepInfo step;
  StateTree tree;                   // pruned to the selection
  std::vector<TensorInfo> tensors;  // key order; hidden ones too, if a selected tensor needs them
  std::vector<ValueInfo> values;    // key order
};

/// One box of one tensor to be read. `target.shape` equals `box.sizes`; dtype must be the stored
/// one.
struct LoadRequest {
  std::string fqn;
  Box box;
  TensorTarget target;
};

/// A tensor to be filled with its part on this rank.
struct ShardTarget {
  std::string fqn;
  /// The mesh, placements or boxes of now, whatever it was saved with; null: the whole tensor. The
  /// views of explicit boxes are written through.
  const Sharding* sharding = nullptr;
  TensorTarget local;
};

struct ShardLoadOptions {
  /// Boxes that several ranks need are read from storage by one of them and passed on through the
  /// communicator of OpenShared. Every rank must call then, with the same step and the same keys in
  /// the same order (stages of a pipeline, whose meshes have no rank in common: each with its own);
  /// kInvalidArgument on all ranks if they do not. Else each rank reads all that it needs, and may
  /// call alone.
  bool read_once = false;
  /// read_once: memory for passing bytes on, of the host or the communicator's device.
  uint64_t buffer_bytes = 64 << 20;
  Progress progress;
  /// For targets in device memory, as Load has them.
  std::vector<DeviceStream> streams;
  /// read_once: passes bytes on in place of the communicator of OpenShared, which all else still
  /// goes over; of the same ranks in the same order. All ranks give one, or none does.
  Communicator* tensor_communicator = nullptr;
};

struct LoadReport {
  uint64_t bytes_read = 0;    // taken from storage, page rounding included
  uint64_t direct_bytes = 0;  // of these, what devices read from the segments themselves
  double seconds = 0;
};

/// A tensor's bytes inside a mapped segment. Keeps the mapping alive.
struct MappedTensor {
  std::shared_ptr<const kv::Mapping> mapping;
  std::span<const std::byte> bytes;  // row-major
};

struct KeyChange {
  enum class Kind { kAdded, kRemoved, kChanged } kind;
  std::string fqn;
  bool is_tensor = true;
  uint64_t changed_bytes = 0;  // bytes of chunks that differ (all of them when added/removed)
  uint64_t total_bytes = 0;
  std::string detail;  // "dtype float32 -> bfloat16", "shape ...", old -> new value
};
struct Diff {
  std::vector<KeyChange> changes;  // key order
  uint64_t unchanged_keys = 0;
};

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
  Result<std::optional<std::vector<std::byte>>> FindAnnex(const kv::StepInfo& step,
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
  internal::RankPlace place() const;
  /// Every save of several ranks begins with it, on each of them.
  internal::SaveAttempt NextAttempt(uint64_t step, const SaveOptions& options);
  /// A save that fails before SavePlanned: lets the other ranks know, and returns the error.
  Error GiveUp(const internal::SaveAttempt& attempt, Error error);
  /// `device` for a plan that has tensors in device memory.
  Result<SaveReport> SavePlanned(const internal::SaveAttempt& attempt, internal::SavePlan& plan,
                                 const SaveOptions& options, internal::SavedChunks* saved,
                                 internal::DeviceSave* device);

  class Impl;
  explicit CheckpointStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::core
