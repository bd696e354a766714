#pragma once
/// What a save does with tensors in device memory: digests there, copies of what changed into the
/// writer's blocks, and the points that the caller may wait for.
///
/// 1. Begin() opens a queue to each device, behind the work that the caller's streams hold.
/// 2. Digest() digests all chunks where they are, compares with the digests that the save before
///    left on the device, and brings those of changed chunks to the host.
/// 3. The writer asks for the bytes of changed pages with Start(), block by block; they cross the
///    bus while it goes on. Or with StartWrite(): the device writes them to the file itself.
/// 4. Staged() is called when the last byte was asked for; from then on the caller can wait.
///
/// A step that is written plan by plan goes through 2 to 4 for each, with GoOn() between them.

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/device/device.h"
#include "core/device/internal/device_transfers.h"
#include "core/save/save_options.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "kv/payload.h"
#include "kv/block_pool.h"
#include "kv/step_info.h"

namespace cairn::core::internal {

/// When the caller may change its tensors again. Threads: safe.
class StagedPoint {
 public:
  /// With the fences of all devices, or without any where there is nothing to wait for (a failed
  /// save needs its tensors no more). Only the first call counts.
  void Set(std::vector<std::pair<int, std::shared_ptr<const DeviceFence>>> fences);
  /// Waits on the host for the bytes to be off the devices. The error of a device is the save's
  /// too.
  Result<void> Await() const;
  /// Waits until all copies are enqueued; then `stream` waits for those of its device, not the
  /// host.
  Result<void> MakeStreamWait(const DeviceStream& stream) const;
  bool is_set() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool set_ = false;  // guarded by mutex_
  // Guarded by mutex_ until set_, then immutable; shared with the queues' makers.
  std::vector<std::pair<int, std::shared_ptr<const DeviceFence>>> fences_;
};

/// Threads: one at a time, but for the StagedPoint.
class DeviceSave final : public kv::CopyQueue {
 public:
  /// True if the plan has tensors in device memory.
  static bool IsNeeded(const SavePlan& plan);

  /// Requires that `plan` has tensors in device memory. `streams`: those that write the caller's
  /// tensors; for other devices the default stream. Errors as DeviceBackend.
  static Result<std::unique_ptr<DeviceSave>> Begin(const SavePlan& plan,
                                                   std::span<const DeviceStream> streams);

  /// The same for a further plan, once the one before is staged. What was brought of that goes on
  /// into its blocks.
  Result<void> GoOn(const SavePlan& plan, std::span<const DeviceStream> streams);

  /// Fills the digests (PlannedShard::leaves, changed, unchanged) of the pieces in device memory.
  /// `base`, if given, is what the save before wrote and the step that will be the base.
  Result<void> Digest(SavePlan& plan, const SavedChunks* base);
  bool is_digested() const { return digested_; }
  /// The step whose digests were compared with, if any: it must be the base.
  const std::optional<kv::StepInfo>& compared() const { return compared_; }
  /// Copies the pieces that have changed within their devices, so that the caller's streams need
  /// only wait for that, and lets the plan point there. False, and nothing is done, where a device
  /// has not enough free memory. Requires Digest.
  Result<bool> TakeSnapshot(SavePlan& plan);

  /// From here on devices may write to files that they reach. They read the tensors then until the
  /// files are written, not only until the bytes have crossed the bus: for saves whose caller waits
  /// for the end anyway, or which have a snapshot. Requires Digest before the first write.
  void WriteFilesDirectly() { transfers_.emplace(backend_); }

  /// Begins to write such bytes to a file that OpenFile accepted. False: they are no run of memory.
  Result<bool> StartWrite(const TensorView& source, uint64_t begin_bytes, uint64_t length_bytes,
                          int fd, uint64_t offset_bytes);
  /// Begins to bring bytes [begin, begin + target.size()) of the row-major form of `source`.
  Result<void> Start(const TensorView& source, uint64_t begin_bytes, std::span<std::byte> target);

  // kv::CopyQueue.
  Result<void> Zero(std::span<std::byte> target) override;
  Result<uint64_t> Flush() override;
  Result<bool> HasReached(uint64_t mark) override;
  Result<void> Await(uint64_t mark) override;
  void Cancel() override;
  Result<std::unique_ptr<kv::PayloadFile>> OpenFile(int fd, const std::string& path) override;

  ~DeviceSave() override;

  /// All bytes have been asked for, or none will be any more.
  Result<void> Staged();
  const std::shared_ptr<StagedPoint>& staged_point() const { return staged_point_; }

  /// Payload that Start was asked for so far, of all plans.
  uint64_t brought_bytes() const { return brought_bytes_; }
  /// Payload that StartWrite took.
  uint64_t direct_bytes() const { return direct_bytes_; }

  const std::shared_ptr<kv::BlockPool>& blocks() const { return blocks_; }
  /// Page-locked memory that a save like this may need. Who takes it once no save is under way
  /// spares the next one the taking.
  struct Reservation {
    std::shared_ptr<kv::BlockPool> blocks;  // the process's
    uint32_t count = 0;
    /// A part of it; false once there is no more to take.
    bool TakeSome() const { return blocks->ReserveSome(count); }
  };
  Reservation reservation() const;

  /// Digests on the devices, for the save after this.
  std::map<int, std::shared_ptr<const DevicePageDigests>> TakePageDigests() { return std::move(page_digests_); }

 private:
  DeviceSave() = default;
  /// Opens what queues are missing, and lets those of the plan's devices follow the streams.
  Result<void> FollowFor(const SavePlan& plan, std::span<const DeviceStream> streams);
  Result<void> DigestOn(int device, SavePlan& plan, const SavedChunks* base);

  DeviceBackend* backend_ = nullptr;  // of the process
  // Freed behind the queues, whose work reads them.
  std::map<int, std::unique_ptr<DeviceMemory>> snapshots_;
  std::map<int, std::shared_ptr<DeviceQueue>> queues_;  // shared for their deleter
  std::set<DeviceQueue*> used_queues_;                  // since the last Flush
  DeviceQueue* last_queue_ = nullptr;                   // that brought the part before
  std::shared_ptr<kv::BlockPool> blocks_;             // the process's
  bool digested_ = false;
  std::optional<kv::StepInfo> compared_;
  uint64_t payload_bytes_ = 0;  // of all plans, on devices
  uint64_t brought_bytes_ = 0;
  uint64_t direct_bytes_ = 0;
  // Nothing unless devices may write files. Ends before the queues and snapshots.
  std::optional<DeviceTransfers> transfers_;
  bool sources_are_ready_ = false;  // the queues have done what was enqueued before the first write
  std::map<int, std::shared_ptr<const DevicePageDigests>> page_digests_;  // shared with the save after
  std::vector<DeviceStream> streams_;                          // one at least for each device
  std::shared_ptr<StagedPoint> staged_point_ = std::make_shared<StagedPoint>();

  std::mutex marks_mutex_;
  uint64_t next_mark_ = 1;  // guarded by marks_mutex_
  // Guarded by marks_mutex_: what each mark of ours means on the queues.
  std::map<uint64_t, std::vector<std::pair<DeviceQueue*, DeviceQueue::Mark>>> marks_;
};

}  // namespace cairn::core::internal
