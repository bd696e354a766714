#pragma once
/// Injects the failures of networks, servers and processes into any storage, for tests.
///
/// A test runs a scenario once without faults, and reads the log of its operations. Then it repeats
/// the scenario with a fault at each of them:
///
///   FaultyStorage storage(std::make_shared<MemoryStorage>("test"));
///   RunScenario(storage);
///   for (const StorageCall& call : storage.Log()) {
///     FaultyStorage faulty(std::make_shared<MemoryStorage>("test"));
///     faulty.SetPlan(FaultAt(call.index, StorageFault::kLoseResponse));
///     RunScenario(faulty);
///   }

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/base/mutex.h"
#include "tests/support/forwarding_storage.h"

namespace cairn::kv::internal {

enum class StorageOperation : uint8_t {
  kPut,
  kPutIfAbsent,
  kCreate,
  kAppend,
  kFinish,
  kReadRange,
  kSize,
  kList,
  kRemove,
  kRemoveLeftovers,
};
/// Returns "Put", "PutIfAbsent", ...
const char* StorageOperationName(StorageOperation operation);

enum class StorageFault : uint8_t {
  kNone,
  kRefuse,        // kUnavailable; nothing is performed
  kLoseResponse,  // the operation is performed, and returns kUnavailable
  kLoseWrite,     // returns success; nothing is performed
  kConflict,      // PutIfAbsent is performed, and returns kConflict
  kTear,          // Finish creates an object without the end of its bytes, and returns kUnavailable
  kPowerCut,      // kUnavailable, and so does every later operation; nothing is performed
  kDelay,         // sleeps first
};
/// Returns "Refuse", "LoseResponse", ...
const char* StorageFaultName(StorageFault fault);
/// Returns whether the fault can happen to this kind of operation. Otherwise it is ignored.
bool CanHappen(StorageFault fault, StorageOperation operation);

struct StorageCall {
  uint64_t index = 0;  // counts the calls of one FaultyStorage from 0
  StorageOperation operation = StorageOperation::kPut;
  std::string name;  // or prefix

  friend bool operator==(const StorageCall&, const StorageCall&) = default;
};

/// Decides the fault of a call. Calls of one FaultyStorage do not overlap.
using FaultPlan = std::function<StorageFault(const StorageCall&)>;
/// Returns a plan with one fault, at the call with this index.
FaultPlan FaultAt(uint64_t index, StorageFault fault);

/// Has the contract of `base`, except for the faults of the plan. Objects are not files, because
/// faults could not be injected into files; over a directory, unfinished objects are visible
/// nevertheless. Ownership: shares `base` with the test, which looks at what remains; outlives its
/// writers.
class FaultyStorage final : public cairn::testing::ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;

  /// An empty plan has no faults. A power cut remains.
  void SetPlan(FaultPlan plan);
  void SetDelay(std::chrono::milliseconds delay);
  /// From now on, List omits the names of the last `omitted_put_count` objects that were put, and
  /// returns those of the last `kept_removal_count` objects that were removed.
  void SetStaleListing(size_t omitted_put_count, size_t kept_removal_count);
  /// From now on, keeps the bytes of objects that are removed, for RestoreRemoved.
  void KeepRemoved();
  /// Creates the objects again that were removed since KeepRemoved, unless they exist: what a power
  /// cut may do to removals (Storage::Remove). Not logged, and without faults.
  Result<void> RestoreRemoved();
  /// Returns the calls since the construction, in order.
  std::vector<StorageCall> Log() const;

  const std::shared_ptr<Storage>& base() const { return base_; }

  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override;
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override;
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override;
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override;
  Result<uint64_t> Size(std::string_view name) override;
  Result<std::vector<std::string>> List(std::string_view prefix) override;
  Result<void> Remove(std::string_view name) override;
  Result<void> RemoveLeftovers(uint32_t end_epoch) override;
  void AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) override {
    base_->AwaitChange(prefix, timeout);
  }

 private:
  class Writer;

  /// Logs the call and returns its fault. Sleeps if that is a delay.
  StorageFault Enter(StorageOperation operation, std::string_view name);
  /// Runs `perform`, which returns a Result, with a fault.
  template <typename Perform>
  auto Apply(StorageFault fault, StorageOperation operation, std::string_view name,
             const Perform& perform) -> decltype(perform());
  /// Runs `perform`, which puts the object, with a fault.
  template <typename Perform>
  Result<void> ApplyToPut(StorageFault fault, StorageOperation operation, std::string_view name,
                          const Perform& perform);
  /// Enters, and runs `perform` with the fault of this call.
  template <typename Perform>
  auto Call(StorageOperation operation, std::string_view name, const Perform& perform)
      -> decltype(perform());

  mutable Mutex mutex_;
  FaultPlan plan_ CAIRN_GUARDED_BY(mutex_);
  std::chrono::milliseconds delay_ CAIRN_GUARDED_BY(mutex_){10};
  bool power_cut_ CAIRN_GUARDED_BY(mutex_) = false;
  std::vector<StorageCall> log_ CAIRN_GUARDED_BY(mutex_);
  size_t omitted_put_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  size_t kept_removal_count_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> puts_ CAIRN_GUARDED_BY(mutex_);      // oldest first
  std::vector<std::string> removals_ CAIRN_GUARDED_BY(mutex_);  // oldest first
  bool keeps_removed_ CAIRN_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::vector<std::byte>> removed_ CAIRN_GUARDED_BY(mutex_);  // by name
};

}  // namespace cairn::kv::internal
