#pragma once
/// One schedule: its processes, its storage, its model and its trace. A seed determines it.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "kv/base/options.h"
#include "kv/store.h"
#include "tests/kv/sample_step.h"
#include "tests/simulation/archive.h"
#include "tests/simulation/model.h"
#include "tests/simulation/scheduler.h"
#include "tests/simulation/simulated_storage.h"

namespace cairn::simulation {

/// What happened, and the first violation.
class Trace {
 public:
  void Add(int64_t time_ns, const Process& process, const std::string& text);
  /// Keeps the first one.
  void Fail(const std::string& violation);

  const std::string& violation() const { return violation_; }  // empty if there is none
  uint64_t hash() const { return hash_; }                      // of all lines
  /// Returns the last lines up to the violation.
  std::string End() const;

 private:
  std::deque<std::string> lines_;
  std::string violation_;
  uint64_t hash_ = 14'695'981'039'346'656'037u;
};

class World {
 public:
  explicit World(uint64_t seed);

  Scheduler& scheduler() { return scheduler_; }
  Trace& trace() { return trace_; }
  /// Returns the model of the store that is at the address now.
  Model& model() { return network_.model(); }
  /// Returns that of this store.
  Model& ModelOf(const kv::Store& store);
  Network& network() { return network_; }
  int64_t grace_ns() const { return grace_ns_; }
  /// Returns null if the schedule has none.
  Archive* archive() { return archive_.get(); }

  /// Adds a process with its storage.
  std::shared_ptr<SimulatedStorage> AddProcess(const std::string& name);
  /// Makes another store with random contents, which is not at the address yet.
  SimulatedStore& AddStore();
  /// Returns all stores; the first one is that at the address when the schedule begins.
  std::deque<SimulatedStore>& stores() { return stores_; }
  /// Returns the options with which processes open the store.
  kv::StoreOptions Options() const;
  /// Records a violation. From then on all processes are dead, so that the schedule ends soon.
  void Fail(const SimulatedStorage* storage, const std::string& violation);

  uint64_t NextWriter() { return ++writer_count_; }
  uint64_t NextVersion() { return ++version_count_; }
  /// Returns the contents of a version of a step.
  const kv::testing::SampleStep& Contents(uint64_t step, uint64_t version);

  // Random numbers.
  uint64_t Between(uint64_t low, uint64_t high) { return scheduler_.Between(low, high); }
  bool Chance(double probability) { return scheduler_.Chance(probability); }

 private:
  Scheduler scheduler_;
  const int64_t grace_ns_;
  const int64_t clock_error_ns_;  // at most, of each process
  const kv::testing::SampleShape shape_;
  Trace trace_;
  std::deque<SimulatedStore> stores_;
  Network network_;
  uint64_t writer_count_ = 0;
  uint64_t version_count_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, kv::testing::SampleStep> contents_;
  std::deque<std::shared_ptr<SimulatedStorage>> storages_;
  const std::unique_ptr<Archive> archive_;

  Model NewModel();
};

}  // namespace cairn::simulation
