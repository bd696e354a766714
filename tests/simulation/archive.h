#pragma once
/// A second store, from which and to which writers copy steps.
///
/// Its storage has no faults and needs no time: what is examined is what copies do to the store of
/// the schedule. Every process opens it when it needs it, so that it is compacted, and steps of it
/// are deleted, while others copy them.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kv/base/error.h"
#include "kv/base/step_info.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/store.h"

namespace cairn::simulation {

class World;

/// Threads: the tasks of all processes.
class Archive {
 public:
  explicit Archive(World& world);

  Result<std::unique_ptr<kv::Store>> Open(kv::OpenMode mode) const;
  /// Saves, deletes or compacts. Errors are those of writers who have taken over in the meantime.
  Result<void> Change();
  /// Records which contents a step has. Attempts are unique in all stores.
  void NoteStep(const kv::StepInfo& step, uint64_t version) { versions_[step.attempt] = version; }
  uint64_t VersionOf(const kv::StepInfo& step) const { return versions_.at(step.attempt); }
  /// Compares all steps with what was saved or copied. Returns the first difference.
  Result<void> Check() const;

 private:
  World& world_;
  const std::shared_ptr<kv::internal::MemoryStorage> storage_;
  std::map<std::string, uint64_t> versions_;  // of the contents, by attempt
};

}  // namespace cairn::simulation
