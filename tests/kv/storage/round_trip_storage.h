#pragma once
/// A storage that is as far away as a server, for tests that count sequential round trips.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/mutex.h"
#include "tests/support/forwarding_storage.h"

namespace cairn::kv::testing {

/// Forwards to `base`. With latency, each call takes until all other threads of the process wait,
/// except appends to an ObjectWriter, which make no request. Threads that make calls at once
/// therefore do so together, on a machine of any speed. Queues have all requests in flight at once.
/// Listings are current.
///
/// The depth of a call is 1 more than the greatest depth of the calls that had completed before it
/// began. LongestChain is thus the number of sequential round trips.
///
/// Ownership: shares `base` with the test. Threads: all members may run on many threads at once.
class RoundTripStorage final : public cairn::testing::ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;

  /// Whether calls have latency: not at first.
  void SetLatency(bool has_latency);

  // Since the last restart; of calls that have completed.
  uint64_t LongestChain() const;
  /// Returns "<depth> <operation> <name>" of each call, in the order of completion.
  std::vector<std::string> Calls() const;
  /// Counts from 0 again. Ignores the calls that are running.
  void Restart();
  /// Restarts whenever an object is put whose name ends with `suffix`.
  void RestartAfterPutOf(std::string suffix);

  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override;
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override;
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override;
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override;
  Result<std::vector<std::byte>> Read(std::string_view name, uint64_t limit_bytes) override;
  Result<uint64_t> Size(std::string_view name) override;
  Result<std::vector<std::string>> List(std::string_view prefix) override;
  Result<void> Remove(std::string_view name) override;
  TransferSizes transfer_sizes() const override;
  bool listings_are_current() const override { return true; }
  Result<std::unique_ptr<IoQueue>> MakeQueue(uint32_t depth) override;
  Result<std::unique_ptr<Upload>> BeginUpload(std::string_view name, uint64_t part_bytes) override;

 private:
  class Writer;
  class Parts;
  class Queue;

  /// Performs one call. `perform` returns a Result.
  template <typename Perform>
  auto Call(std::string_view operation, std::string_view name, const Perform& perform)
      -> decltype(perform());

  /// Returns when no other thread runs. Releases `mutex_` in the meantime.
  void AwaitOthers() CAIRN_REQUIRES(mutex_);

  mutable Mutex mutex_;
  bool has_latency_ CAIRN_GUARDED_BY(mutex_) = false;
  std::set<pid_t> waiting_ CAIRN_GUARDED_BY(mutex_);  // the threads in AwaitOthers
  uint64_t begun_ CAIRN_GUARDED_BY(mutex_) = 0;       // number of calls that have waited
  uint64_t released_ CAIRN_GUARDED_BY(mutex_) = 0;    // and of those that need not wait longer
  uint64_t leaving_ CAIRN_GUARDED_BY(mutex_) = 0;     // that still are in AwaitOthers
  uint64_t restarts_ CAIRN_GUARDED_BY(mutex_) = 0;
  uint64_t completed_depth_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::string restart_suffix_ CAIRN_GUARDED_BY(mutex_);
  std::vector<std::string> calls_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::testing
