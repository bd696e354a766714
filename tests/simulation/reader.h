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
  void LoadSome(const kv::Snapshot& snapshot, uint64_t root);

  std::unique_ptr<kv::Store> store_;
  uint64_t newest_seen_ = 0;  // root
};

}  // namespace cairn::simulation
