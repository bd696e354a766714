// Compares the store with the model.

#include "tests/simulation/auditor.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "kv/root/internal/root_record.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/state/internal/store_identity.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::simulation {

void Auditor::Run() {
  RemoveStrays();
  CheckAsReader();
  CheckAsWriter();
  if (world().archive() == nullptr) return;
  const Result<void> checked = world().archive()->Check();
  if (!checked) Report(fmt::format("the archive: {}", checked.error().ToString()));
}

/// As an error of a writer whose number they have demands.
void Auditor::RemoveStrays() {
  const auto& objects = world().network().objects();
  const auto uuid = kv::internal::ReadIdentity(*objects);
  const std::vector<std::string> names = objects->List("roots/").value();
  for (const std::string& name : names) {
    const auto root = kv::internal::DecodeRoot(objects->Read(name, 1 << 30).value());
    if (uuid && root && root->store_uuid != *uuid) (void)objects->Remove(name);
  }
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
  if (!closed) return Report(fmt::format("cannot close: {}", closed.error().ToString()));
  CheckLossOfNewest();
}

/// After a close, the hint names the newest root: an older one does not take its place.
void Auditor::CheckLossOfNewest() {
  const auto& objects = world().network().objects();
  const std::string newest = kv::internal::RootName(world().model().newest());
  const auto bytes = objects->Read(newest, 1 << 30).value();
  (void)objects->Remove(newest);
  const auto opened = kv::Store::Open(storage(), kv::OpenMode::kRead, world().Options());
  if (opened || opened.error().code != ErrorCode::kDataLoss) {
    Report("the loss of the newest root is not noticed");
  }
  (void)objects->Put(newest, bytes);
}

void Auditor::CheckLeftovers() {
  const auto& objects = world().network().objects();
  const auto leftovers = kv::testing::FindLeftovers(objects);
  if (!leftovers) return Report(leftovers.error().ToString());
  for (const std::string& name : *leftovers) {
    if (!IsOfOtherStore(name)) Report(fmt::format("{} is left over", name));
  }
  const std::vector<std::string> leases = objects->List("leases/").value();
  for (const std::string& name : leases) {
    const bool is_own = name == "leases/" + store().session();
    if (!is_own && !IsOfOtherStore(name)) Report(fmt::format("{} is left over", name));
  }
}

/// A writer whose store was replaced by this one has put what has no epoch of a former writer.
bool Auditor::IsOfOtherStore(const std::string& name) {
  if (world().stores().size() == 1) return false;
  const auto object = kv::internal::ParseObjectName(name);
  const std::string session = name.substr(name.find('/') + 1);
  const auto epoch = object ? object->id.epoch : kv::internal::EpochOfSession(session);
  return epoch >= kv::internal::EpochOfSession(store().session());
}

}  // namespace cairn::simulation
