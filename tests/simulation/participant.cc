// Checks of what calls return.

#include "tests/simulation/participant.h"

#include <fmt/format.h>

#include <utility>

namespace cairn::simulation {

Participant::Participant(World& world, const std::string& name)
    : world_(world), storage_(world.AddProcess(name)) {}

void Participant::SetStore(const kv::Store& store) {
  model_ = &world_.ModelOf(store);
  replaced_count_ = world_.network().counts().replaced_stores;
}

bool Participant::is_replaced() {
  return world_.network().counts().replaced_stores != replaced_count_ ||
         &model() != &world_.model();
}

void Participant::Note(const std::string& text) {
  world_.network().Note(storage_->process(), text);
}

void Participant::Sleep(int64_t at_most_ns) {
  world_.scheduler().SleepFor(static_cast<int64_t>(world_.Between(0, at_most_ns)));
}

std::optional<Error> Participant::Perform(Operation operation,
                                          const std::function<Result<void>()>& change) {
  operation.begin_ns = world_.scheduler().now_ns();
  Operation& begun = model().Begin(std::move(operation));
  Note(fmt::format("begins {}", begun.name));
  storage_->SetOperation(&begun);
  const Result<void> changed = change();
  storage_->SetOperation(nullptr);
  if (is_dead()) return changed ? std::nullopt : std::optional(changed.error());
  Note(fmt::format("{}: {}", begun.name, changed ? "done" : changed.error().ToString()));
  Count(changed);
  if (!begun.moves_payload) {
    model().CheckOutcome(begun, changed ? nullptr : &changed.error());
  }
  return changed ? std::nullopt : std::optional(changed.error());
}

void Participant::Count(const Result<void>& changed) {
  Counts& counts = world_.network().counts();
  ++(changed ? counts.acknowledged : counts.failed);
  if (!changed && IsUnknown(changed.error())) ++counts.unknown;
}

void Participant::CheckError(const std::string& call, const Error& error, uint64_t fault_count) {
  if (is_dead() || is_replaced()) return;
  // A stray root has the next number, or hides the newest one from a search.
  const bool has_strays = world_.network().counts().strays > 0;
  if (has_strays && error.message.find("a root of another store") != std::string::npos) return;
  const bool is_disturbed = has_strays || storage_->fault_count() > fault_count;
  if (error.code == ErrorCode::kUnavailable && is_disturbed) return;
  Report(fmt::format("{} returned {}: {}", call, ErrorCodeName(error.code), error.ToString()));
}

bool Participant::CheckStep(const kv::Snapshot& snapshot, uint64_t root, uint64_t step) {
  const uint64_t fault_count = storage_->fault_count();
  const Result<kv::testing::SampleStep> loaded = kv::testing::LoadSample(snapshot, step);
  if (is_dead()) return true;
  Note(fmt::format("loads step {} of root {}: {}", step, root,
                   loaded ? "done" : loaded.error().ToString()));
  if (loaded) {
    ++world_.network().counts().loads;
    const uint64_t version = model().StateAt(root).steps.at(step).version;
    if (*loaded != world_.Contents(step, version)) {
      Report(fmt::format("step {} has wrong contents", step));
    }
    return true;
  }
  const bool may_be_gone = model().MayBeGone(root, step, world_.scheduler().now_ns());
  if (loaded.error().code == ErrorCode::kNotFound && may_be_gone) return false;
  CheckError(fmt::format("the load of step {}", step), loaded.error(), fault_count);
  return true;
}

}  // namespace cairn::simulation
