#pragma once
/// The last process of a schedule, after all others have ended: the store must contain what the
/// model contains, and nothing else, and must be usable.

#include "tests/simulation/writer.h"

namespace cairn::simulation {

/// Requires that the network is calm and that all leases have expired.
class Auditor : public Writer {
 public:
  explicit Auditor(World& world) : Writer(world, "auditor") {}
  void Run();

 private:
  void CheckAsReader();
  void CheckAsWriter();
  void CheckLeftovers();
  void CheckLossOfNewest();
  void RemoveStrays();
  bool IsOfOtherStore(const std::string& name);
};

}  // namespace cairn::simulation
