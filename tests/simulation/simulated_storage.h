#pragma once
/// The storage of a simulated process: objects in memory that all processes share, with a network
/// in between that delays, loses and repeats requests.
///
/// Every request takes time, before and after it is performed, so that the requests of all
/// processes interleave. The process may be paused or killed at both moments. The contract of
/// kv::Storage is kept: what was acknowledged is there, of several puts of one name if it is absent
/// one succeeds, and only listings are late.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/storage.h"
#include "tests/simulation/model.h"
#include "tests/simulation/scheduler.h"
#include "tests/support/faulty_storage.h"

namespace cairn::simulation {

/// How the network and the processes of a schedule behave.
struct Conditions {
  int64_t latency_ns = 0;  // of half a request, on average
  double slow_chance = 0;  // that half a request takes up to `slow_ns`
  int64_t slow_ns = 0;
  double fault_chance = 0;   // of a request
  double outage_chance = 0;  // that the process loses its connection, at a request
  int64_t outage_ns = 0;     // at most
  double late_chance = 0;    // that a change whose response is lost is performed later
  double pause_chance = 0;   // of a process, at a request
  int64_t pause_ns = 0;      // at most
  int64_t listing_delay_ns = 0;
  bool listings_are_current = false;
  uint32_t small_requests = 1;
};

/// What happened in a schedule.
struct Counts {
  uint64_t acknowledged = 0;  // operations of writers
  uint64_t failed = 0;        // operations that returned an error
  uint64_t unknown = 0;       // of these, those that may have been performed
  uint64_t loads = 0;         // of steps, compared with what was saved
  uint64_t requests = 0;
  uint64_t faults = 0;
  uint64_t outages = 0;
  uint64_t pauses = 0;
  uint64_t kills = 0;
  uint64_t stale_listings = 0;
  uint64_t replaced_stores = 0;
  uint64_t strays = 0;  // roots that were put into another store than theirs
};

/// The objects of a store, and what they must be.
struct SimulatedStore {
  Model model;
  std::shared_ptr<kv::internal::MemoryStorage> objects =
      std::make_shared<kv::internal::MemoryStorage>("simulation");
};

/// What the processes of a schedule share. Ownership: outlives all storages; the owner of the
/// stores outlives it.
class Network {
 public:
  using Trace = std::function<void(const Process&, const std::string&)>;
  Network(Scheduler& scheduler, SimulatedStore& store, const Conditions& conditions, Trace trace);

  Scheduler& scheduler() { return scheduler_; }
  /// Returns the store that is at the address now.
  SimulatedStore& store() { return *store_; }
  /// From now on, requests are performed in this store, also those that are on their way.
  void Replace(SimulatedStore& store);
  Model& model() { return store_->model; }
  const Conditions& conditions() const { return conditions_; }
  const std::shared_ptr<kv::internal::MemoryStorage>& objects() { return store_->objects; }
  Counts& counts() { return counts_; }
  void Note(const Process& process, const std::string& text) { trace_(process, text); }

  /// From now on no request has a fault, and nothing is paused.
  void Calm();
  /// Records that an object was put or removed just now.
  void NoteChange(std::string_view name, bool exists);
  /// Returns the names as a listing shows them, which may not know the latest changes.
  std::vector<std::string> StaleListing(std::string_view prefix, std::vector<std::string> names);
  /// Performs a change that its process does not wait for, in the store that is at the address now.
  void PerformLater(std::function<void()> change);
  uint64_t late_count() const { return late_count_; }

 private:
  struct Change {
    int64_t time_ns = 0;
    std::string name;
    bool exists = false;
  };

  Scheduler& scheduler_;
  SimulatedStore* store_;
  Conditions conditions_;
  const Trace trace_;
  Process& cables_;
  Counts counts_;
  std::deque<Change> changes_;  // oldest first
  uint64_t late_count_ = 0;     // changes that are still to be performed
};

/// Threads: the tasks of one process.
class SimulatedStorage final : public kv::Storage {
 public:
  SimulatedStorage(Network& network, Process& process);

  Process& process() const { return process_; }
  /// Roots that this task puts from now on are put by this operation; by none if it is null.
  void SetOperation(Operation* operation);
  /// Kills the process at its n-th request from now on.
  void KillAt(uint64_t request) { requests_left_ = request; }
  /// Pauses the process when it is about to put its next root, and when it has put it.
  void PauseAtNextRoot(int64_t before_ns, int64_t after_ns) {
    root_pause_ns_ = before_ns;
    after_root_pause_ns_ = after_ns;
  }
  /// Returns how many requests were disturbed so far.
  uint64_t fault_count() const { return fault_count_; }

  const std::string& address() const override { return network_.objects()->address(); }
  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override;
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override;
  Result<std::unique_ptr<kv::ObjectWriter>> Create(std::string_view name) override;
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override;
  Result<uint64_t> Size(std::string_view name) override;
  Result<std::vector<std::string>> List(std::string_view prefix) override;
  Result<void> Remove(std::string_view name) override;
  void AwaitChange(std::string_view prefix, std::chrono::milliseconds timeout) override;
  bool listings_are_current() const override { return network_.conditions().listings_are_current; }
  kv::TransferSizes transfer_sizes() const override;

 private:
  class Writer;
  using Fault = kv::internal::StorageFault;
  using Kind = kv::internal::StorageOperation;

  /// What happens to a request.
  struct Fate {
    Fault fault = Fault::kNone;
    bool dies_after = false;  // the process is killed when the request was performed
  };

  /// Half of a request: waits, and possibly pauses the process.
  void Travel();
  void Pause(int64_t pause_ns);
  void Die();
  Fault ChooseFault(Kind kind);
  /// The first half of a request.
  Fate Depart(Kind kind);
  /// The second half. `error` is that of the operation on the objects, or null. Returns what the
  /// caller receives instead of the result, if anything.
  std::optional<Error> Return(Kind kind, std::string_view name, const Fate& fate,
                              const Error* error);
  /// Runs `perform(is_torn)` as a request.
  template <typename Perform>
  auto Call(Kind kind, std::string_view name, const Perform& perform) -> decltype(perform(false));
  /// A root was put by `operation`.
  void RootPut(uint64_t number, std::span<const std::byte> bytes, Operation* operation);
  /// Runs a change as a request. It owns what it needs, because it may be performed later.
  Result<void> Change(Kind kind, std::string_view name,
                      std::function<Result<void>(bool is_torn)> change);
  Operation* CurrentOperation() const;
  Error Failure(Kind kind, std::string_view name, const char* what) const;

  Network& network_;
  Process& process_;
  std::map<uint64_t, Operation*> operations_;  // by task
  uint64_t requests_left_ = 0;                 // until the process is killed; 0: never
  int64_t root_pause_ns_ = 0;
  int64_t after_root_pause_ns_ = 0;
  const SimulatedStore* root_read_in_ = nullptr;  // the store of the last root that was read
  int64_t outage_until_ns_ = 0;
  uint64_t fault_count_ = 0;
};

}  // namespace cairn::simulation
