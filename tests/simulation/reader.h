#pragma once
/// A reader: looks at the newest state again and again, and keeps snapshots while writers delete
/// their steps.

#include <cstdint>
#include <memory>
#include <string>

#include "kv/store.h"
#include "tests/simulation/participant.h"

namespace cairn::simulation {

class Reader : public Participant {
 public:
  Reader(World& world, const std::string& name) : Participant(world, name) {}
  void Run();

 private:
  bool Open();
  void Look();
  /// Asks for a step that was in a snapshot of root `root`, which may have been deleted since.
  void Find(const kv::StepInfo& step, uint64_t root);
  void LoadSome(const kv::Snapshot& snapshot, uint64_t root);
  /// Loads a step that a compaction has moved from a newer snapshot.
  void FollowMoved(uint64_t step);

  std::unique_ptr<kv::Store> store_;
  uint64_t newest_seen_ = 0;  // root
};

}  // namespace cairn::simulation
