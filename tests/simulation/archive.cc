// The second store, and what writers copy from it and to it.

#include "tests/simulation/archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "kv/compact.h"
#include "kv/copy_steps.h"
#include "tests/simulation/writer.h"

namespace cairn::simulation {

Archive::Archive(World& world)
    : world_(world), storage_(std::make_shared<kv::internal::MemoryStorage>("archive")) {}

Result<std::unique_ptr<kv::Store>> Archive::Open(kv::OpenMode mode) const {
  kv::StoreOptions options = world_.Options();
  options.take_over = true;
  return kv::Store::Open(storage_, mode, options);
}

Result<void> Archive::Change() {
  CAIRN_TRY_ASSIGN(const auto store, Open(kv::OpenMode::kWrite));
  CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
  const std::vector<uint64_t>& steps = snapshot->step_numbers();
  const uint64_t what = steps.empty() ? 0 : world_.Between(0, 4);
  if (what == 1) CAIRN_TRY(kv::Compact(*store, {.max_dead = 0}));
  if (what == 2) {
    const uint64_t step = steps[world_.Between(0, steps.size() - 1)];
    CAIRN_TRY(store->Delete({&step, 1}));
  }
  if (what == 1 || what == 2) return store->Close();
  const uint64_t first = steps.empty() ? 1 : steps.back() + 1;
  for (uint64_t step = first; step < first + world_.Between(1, 3); ++step) {
    const uint64_t version = world_.NextVersion();
    CAIRN_TRY_ASSIGN(const kv::StepInfo saved,
                     kv::testing::SaveSample(*store, world_.Contents(step, version)));
    NoteStep(saved, version);
  }
  return store->Close();
}

Result<void> Archive::Check() const {
  CAIRN_TRY_ASSIGN(const auto store, Open(kv::OpenMode::kWrite));
  CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, snapshot->Steps());
  for (const kv::StepInfo& step : steps) {
    CAIRN_TRY_ASSIGN(const auto loaded, kv::testing::LoadSample(*snapshot, step.step));
    if (loaded == world_.Contents(step.step, VersionOf(step))) continue;
    return Fail(ErrorCode::kDataLoss, fmt::format("step {} has wrong contents", step.step));
  }
  CAIRN_TRY_ASSIGN(const auto damage, kv::testing::Verify(*snapshot));
  if (!damage.empty()) return Fail(ErrorCode::kDataLoss, damage.front());
  return store->Close();
}

// --- writers

void Writer::UseArchive() {
  Archive& archive = *world().archive();
  if (world().Chance(0.4)) {
    const Result<void> changed = archive.Change();
    if (changed || is_dead()) return;
    // Another process has taken over the archive, or a step was deleted there.
    if (changed.error().code == ErrorCode::kConflict) return;
    if (changed.error().code == ErrorCode::kNotFound) return;
    return Report(fmt::format("the archive: {}", changed.error().ToString()));
  }
  world().Chance(0.3) ? CopyToArchive() : CopyFromArchive();
}

void Writer::CopyFromArchive() {
  constexpr size_t kMaxSteps = 50;  // a new step is in the root itself, and not in a page
  const auto source = world().archive()->Open(kv::OpenMode::kRead);
  const auto own = store().Latest();
  if (!source || !own || (*own)->step_numbers().size() > kMaxSteps) return;
  const auto snapshot = (*source)->Latest();
  if (!snapshot) return Report(snapshot.error().ToString());
  const auto steps = (*snapshot)->Steps();
  if (!steps || steps->empty()) return;
  const kv::StepInfo step = (*steps)[world().Between(0, steps->size() - 1)];
  const uint64_t version = world().archive()->VersionOf(step);

  Operation operation = NewOperation(fmt::format("copy step {} as version {}", step.step, version));
  operation.apply = [step, version](State& state, const kv::internal::Root& root) {
    state.Add(step.step, version, root);
  };
  operation.takes_effect = [step](const kv::internal::Root& root) {
    return std::ranges::any_of(root.recent, [&](const auto& entry) {
      return entry->info.step == step.step && entry->info.attempt == step.attempt;
    });
  };
  const Operation copy = operation;
  const uint64_t fault_count = storage()->fault_count();
  kv::CopyOptions options{.steps = {step.step}, .overwrite = world().Chance(0.5), .threads = 1};
  if (world().Chance(0.5)) options.keep_interval = std::chrono::milliseconds(0);
  bool was_present = false;
  const auto error = Perform(std::move(operation), [&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(const kv::CopyReport report, kv::CopySteps(**source, store(), options));
    was_present = report.steps[0].outcome != kv::CopiedStep::Outcome::kCopied;
    if (was_present) return Fail(ErrorCode::kCancelled, "there was nothing to copy");
    return {};
  });
  if (!error || was_present) return;
  const bool is_refused = error->message.find("other contents") != std::string::npos;
  if (error->code == ErrorCode::kConflict && is_refused && !options.overwrite) return;
  // The step was deleted in the archive before the copy began.
  if (error->code == ErrorCode::kNotFound &&
      error->message.find("no such step") != std::string::npos) {
    return;
  }
  Judge(copy, *error, fault_count);
}

void Writer::CopyToArchive() {
  const uint64_t fault_count = storage()->fault_count();
  const auto snapshot = store().Latest();
  if (!snapshot || (*snapshot)->step_numbers().empty()) return;
  const auto root = model().FindRoot(**snapshot, 0);
  if (!root || is_dead()) return;
  const auto step = (*snapshot)->FindStep(*AnyStep());
  if (!step || is_dead()) return;
  const auto known = model().StateAt(*root).steps.find(step->step);
  if (known == model().StateAt(*root).steps.end()) return;
  world().archive()->NoteStep(*step, known->second.version);
  const auto target = world().archive()->Open(kv::OpenMode::kWrite);
  if (!target) return;
  const auto copied = kv::CopySteps(store(), **target, {.steps = {step->step}, .threads = 1});
  if (copied || is_dead()) return;
  Note(fmt::format("copies step {} to the archive: {}", step->step, copied.error().ToString()));
  const ErrorCode code = copied.error().code;
  const bool is_fenced = model().IsFenced(NewOperation("copy"));
  // The archive has other contents, or another writer; another writer of the store has deleted the
  // step.
  if (code == ErrorCode::kConflict || (code == ErrorCode::kNotFound && is_fenced)) return;
  CheckError("the copy to the archive", copied.error(), fault_count);
}

}  // namespace cairn::simulation
