#pragma once
/// What the writers, readers and ranks of a simulation have in common: a process with a storage,
/// and checks of what its calls return.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kv/base/error.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tests/simulation/world.h"

namespace cairn::simulation {

/// Threads: the tasks of its process.
class Participant {
 public:
  Participant(World& world, const std::string& name);
  Process& process() const { return storage_->process(); }

 protected:
  World& world() { return world_; }
  const std::shared_ptr<SimulatedStorage>& storage() { return storage_; }
  bool is_dead() { return storage_->process().is_dead; }
  /// Notes which store this process has opened.
  void SetStore(const kv::Store& store);
  /// Returns the model of the store that this process has opened; before, of the one that is there.
  Model& model() { return model_ == nullptr ? world_.model() : *model_; }
  /// Returns whether another store has taken the place of the one that this process has opened, now
  /// or before, so that its calls may fail in any way.
  bool is_replaced();
  void Note(const std::string& text);
  void Report(const std::string& violation) { world_.Fail(storage_.get(), violation); }
  void Sleep(int64_t at_most_ns);

  /// Calls `change` as this operation, checks its outcome, and returns its error.
  std::optional<Error> Perform(Operation operation, const std::function<Result<void>()>& change);
  /// Reports an error that nothing has caused. `fault_count` is that of the storage before the
  /// call.
  void CheckError(const std::string& call, const Error& error, uint64_t fault_count);
  /// Loads a step of a snapshot of root `root`, and compares it with what was saved. Returns false
  /// if its objects were removed, as they may be.
  bool CheckStep(const kv::Snapshot& snapshot, uint64_t root, uint64_t step);

 private:
  void Count(const Result<void>& changed);

  World& world_;
  Model* model_ = nullptr;
  uint64_t replaced_count_ = 0;  // of all stores, when this process opened its own
  const std::shared_ptr<SimulatedStorage> storage_;
};

}  // namespace cairn::simulation
