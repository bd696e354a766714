// Compares the store with the model.

#include "tests/simulation/auditor.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace cairn::simulation {

void Auditor::Run() {
  CheckAsReader();
  CheckAsWriter();
}

void Auditor::CheckAsReader() {
  if (world().model().newest() == 0) return;
  const auto opened = kv::Store::Open(storage(), kv::OpenMode::kRead, world().Options());
  if (!opened) return Report(fmt::format("cannot read: {}", opened.error().ToString()));
  const auto snapshot = (*opened)->Latest();
  if (!snapshot) return Report(fmt::format("cannot read: {}", snapshot.error().ToString()));
  const uint64_t newest = world().model().newest();
  if (!world().model().FindRoot(**snapshot, newest)) return;
  for (const uint64_t step : (*snapshot)->step_numbers()) CheckStep(**snapshot, newest, step);
  const auto damage = kv::testing::Verify(**snapshot);
  if (!damage) return Report(fmt::format("cannot verify: {}", damage.error().ToString()));
  for (const std::string& line : *damage) Report(line);
}

void Auditor::CheckAsWriter() {
  if (!Open()) return Report("cannot open the store for writing");
  CheckLeftovers();
  const uint64_t step = NewStep();
  const uint64_t version = world().NextVersion();
  const auto error = Perform(SaveOf(step, version, false), [&]() -> Result<void> {
    CAIRN_TRY(kv::testing::SaveSample(store(), world().Contents(step, version)));
    return {};
  });
  if (error) return Report(fmt::format("cannot save: {}", error->ToString()));
  const auto closed = store().Close();
  if (!closed) Report(fmt::format("cannot close: {}", closed.error().ToString()));
}

void Auditor::CheckLeftovers() {
  const auto& objects = world().network().objects();
  const auto leftovers = kv::testing::FindLeftovers(objects);
  if (!leftovers) return Report(leftovers.error().ToString());
  for (const std::string& name : *leftovers) Report(fmt::format("{} is left over", name));
  const std::vector<std::string> leases = objects->List("leases/").value();
  for (const std::string& name : leases) {
    if (name != "leases/" + store().session()) Report(fmt::format("{} is left over", name));
  }
}

}  // namespace cairn::simulation
