#pragma once
/// The part of a save that concerns tensors in device memory: it digests them on the device, copies
/// changed pages to the blocks of the writer, and tells the caller when its tensors may change.
///
/// 1. Begin() opens a queue on each device, ordered after the work in the caller's streams.
/// 2. Digest() digests all chunks on their devices, compares them with the page digests that the
///    previous save left there, and copies the page digests of changed chunks to the host.
/// 3. The writer requests the bytes of changed pages block by block with StartCopy(), which
///    enqueues the copies and returns.
/// 4. CheckUnchanged() digests the copied memory again, so that the digests in the records match
///    the copies.
/// 5. MarkStaged() is called after the last request; from then on the StagedPoint can be waited
///    for.
///
/// A step that is written plan by plan repeats 2 to 5 for each plan, with BeginNextPlan() before.

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/save_options.h"
#include "kv/base/mutex.h"
#include "kv/base/payload.h"
#include "kv/base/step_info.h"
#include "kv/io/block_pool.h"

namespace cairn::core::internal {

/// The point from which on the caller may change its tensors. Threads: all members are safe.
class StagedPoint {
 public:
  using Fences = std::vector<std::pair<int, std::shared_ptr<const DeviceFence>>>;  // by device
  /// Sets the fences of all devices; none if there is nothing to wait for, as after a save that
  /// failed. Only the first call has an effect.
  void Set(Fences fences) {
    if (!set_.exchange(true)) promise_.set_value(std::move(fences));
  }
  /// Waits on the host until the copies are done. kUnavailable: a device has failed, and with it
  /// the save.
  Result<void> Await() const;
  /// Waits until all copies are enqueued; then makes `stream`, not the host, wait for the copies on
  /// its device.
  Result<void> MakeStreamWait(const DeviceStream& stream) const;
  bool is_set() const { return set_; }

 private:
  std::atomic<bool> set_ = false;
  std::promise<Fences> promise_;
  const std::shared_future<Fences> fences_ = promise_.get_future().share();
};

/// Threads: one at a time, except HasReached, Await and the StagedPoint, which are safe.
class DeviceSave final : public kv::CopyQueue {
 public:
  /// True if the plan has tensors in device memory.
  static bool IsNeeded(const SavePlan& plan);

  /// Begins a save of `plan`. `streams` are the streams whose work produces the values of the
  /// tensors; for devices that are not named, the default stream. Requires that `plan` has tensors
  /// in device memory. kUnavailable: there is no such device, or it has failed. kResourceExhausted:
  /// there is no page-locked memory.
  static Result<std::unique_ptr<DeviceSave>> Begin(const SavePlan& plan,
                                                   std::span<const DeviceStream> streams);

  /// Prepares for another plan of the same step; copies for the plan before continue. Requires that
  /// the plan before is staged. Errors: see Begin.
  Result<void> BeginNextPlan(const SavePlan& plan, std::span<const DeviceStream> streams);

  /// Digests the shards in device memory and sets their SavePlan::pages and ::unchanged. `base`
  /// is what the previous save wrote, if its step will be the base; otherwise null. Waits for the
  /// result.
  Result<void> Digest(SavePlan& plan, const SavedChunks* base);
  bool is_digested() const { return digested_; }
  /// The step that the plan was compared with, if any. It must be the base of the save.
  const std::optional<kv::StepInfo>& compared() const { return compared_; }
  /// Copies the shards that have changed within their devices and makes the plan point to the
  /// copies, so that the caller's streams wait for these copies only. Returns false, without an
  /// effect, if a device does not have enough free memory. Requires Digest.
  Result<bool> TakeSnapshot(SavePlan& plan);

  /// Begins to copy bytes [begin_bytes, begin_bytes + target.size()) of the row-major form of
  /// `source` to `target`.
  Result<void> StartCopy(const TensorView& source, uint64_t begin_bytes,
                         std::span<std::byte> target);

  // kv::CopyQueue.
  Result<void> Zero(std::span<std::byte> target) override;
  Result<uint64_t> Flush() override;
  Result<bool> HasReached(uint64_t mark) override;
  Result<void> Await(uint64_t mark) override;
  void Cancel() override;

  ~DeviceSave() override;

  /// Digests the tensors whose bytes were requested once more, after the copies. kInvalidArgument:
  /// a tensor has changed since Digest, and its copies may not have the digests of the plan. Waits
  /// for the copies. Requires Digest.
  Result<void> CheckUnchanged(const SavePlan& plan);
  /// Sets the StagedPoint: all copies of the plan have been requested.
  Result<void> MarkStaged();
  const std::shared_ptr<StagedPoint>& staged_point() const { return staged_point_; }

  /// Payload that was requested with StartCopy so far, of all plans.
  uint64_t copied_bytes() const { return copied_bytes_; }

  const std::shared_ptr<kv::BlockPool>& blocks() const { return blocks_; }
  /// Page-locked memory that a save of the same size needs. Locking it while no save is running
  /// spares the next save the time.
  struct Reservation {
    std::shared_ptr<kv::BlockPool> blocks;  // shared by the process
    uint32_t count = 0;
    /// Locks a part of it. Returns false when nothing is left to lock.
    bool ReserveSome() const { return blocks->ReserveSome(count); }
  };
  Reservation reservation() const;

  /// Returns the page digests that Digest left on the devices, by device, for the next save.
  std::map<int, DeviceMemory> TakePageDigests() { return std::move(page_digests_); }

 private:
  DeviceSave() = default;
  /// Opens the queues of the plan's devices that are not open, and orders them after the streams.
  Result<void> OpenQueues(const SavePlan& plan, std::span<const DeviceStream> streams);
  Result<void> DigestOn(int device, SavePlan& plan, const SavedChunks* base);
  Result<void> CheckUnchangedOn(int device, const SavePlan& plan);

  DeviceBackend* backend_ = nullptr;  // the process's
  // Declared before the queues, whose work reads them, so that they are freed after them.
  std::map<int, DeviceMemory> snapshots_;
  std::map<int, std::shared_ptr<DeviceQueue>> queues_;  // shared_ptr only for the deleter
  std::set<DeviceQueue*> used_queues_;                  // since the last Flush
  DeviceQueue* last_queue_ = nullptr;                   // queue of the last StartCopy
  std::shared_ptr<kv::BlockPool> blocks_;               // shared by the process
  bool digested_ = false;
  std::optional<kv::StepInfo> compared_;
  uint64_t payload_bytes_ = 0;  // payload of all plans, on devices
  uint64_t copied_bytes_ = 0;
  std::map<int, DeviceMemory> page_digests_;  // by device; shared with the next save
  std::vector<DeviceStream> streams_;         // at least one per device
  std::shared_ptr<StagedPoint> staged_point_ = std::make_shared<StagedPoint>();

  Mutex marks_mutex_;
  uint64_t next_mark_ CAIRN_GUARDED_BY(marks_mutex_) = 1;
  // The points in the queues that each mark stands for, until it is reached.
  std::map<uint64_t, std::vector<std::shared_ptr<const DeviceFence>>> marks_
      CAIRN_GUARDED_BY(marks_mutex_);
};

}  // namespace cairn::core::internal
