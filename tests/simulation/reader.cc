// What a reader sees.

#include "tests/simulation/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "kv/root/internal/root_log.h"

namespace cairn::simulation {

void Reader::Run() {
  Sleep(20 * kSecondNs);
  if (!Open()) return;
  for (uint64_t left = world().Between(1, 8); left > 0 && !is_dead(); --left) {
    Look();
    world().Chance(0.5) ? Sleep(20 * kSecondNs)
                        : store_->AwaitChange(std::chrono::seconds(world().Between(0, 20)));
  }
}

bool Reader::Open() {
  for (int left = 5; left > 0 && !is_dead(); --left) {
    const uint64_t fault_count = storage()->fault_count();
    const bool may_be_absent = model().newest() == 0;
    auto opened = kv::Store::Open(storage(), kv::OpenMode::kRead, world().Options());
    if (opened) {
      store_ = *std::move(opened);
      SetStore(*store_);
      return true;
    }
    Note(fmt::format("cannot open: {}", opened.error().ToString()));
    if (opened.error().code != ErrorCode::kNotFound || !may_be_absent) {
      CheckError("the open", opened.error(), fault_count);
    }
    Sleep(10 * kSecondNs);
  }
  return false;
}

void Reader::Look() {
  const uint64_t fault_count = storage()->fault_count();
  // A reader sees every commit that was made before it looks.
  const uint64_t newest = std::max(newest_seen_, model().newest());
  const auto snapshot = store_->Latest();
  if (is_dead()) return;
  if (!snapshot) return CheckError("Latest", snapshot.error(), fault_count);
  // A root that a writer of this store has put into the other one is not a state of either.
  if (is_replaced() && world().network().counts().strays > 0) return;
  // Unless another store was at the address in the meantime, in which it has looked for roots.
  const std::optional<uint64_t> root =
      model().FindRoot(**snapshot, is_replaced() ? newest_seen_ : newest);
  if (!root) return;
  newest_seen_ = *root;
  Note(fmt::format("sees root {} {}", *root, Describe(model().StateAt(*root))));
  LoadSome(**snapshot, *root);
  if (world().Chance(0.3)) {
    Sleep(2 * world().grace_ns());
    LoadSome(**snapshot, *root);
    const auto step = (*snapshot)->FindStep(std::nullopt);
    if (step) Find(*step, *root);
  }
}

void Reader::Find(const kv::StepInfo& step, uint64_t root) {
  const uint64_t fault_count = storage()->fault_count();
  const auto snapshot = store_->SnapshotWith(step);
  if (is_dead()) return;
  Note(
      fmt::format("finds step {}: {}", step.step, snapshot ? "done" : snapshot.error().ToString()));
  if (snapshot) {
    const auto found = (*snapshot)->FindStep(step.step);
    if (found && found->generation == step.generation) return;
    return Report(fmt::format("a snapshot lacks step {}, for which it was made", step.step));
  }
  const bool may_be_removed =
      step.generation + kv::internal::kKeptRoots <= model().newest() &&
      model().MayBeGone(root, step.step, world().scheduler().now_ns() + world().grace_ns());
  if (snapshot.error().code == ErrorCode::kNotFound && may_be_removed) return;
  CheckError("SnapshotWith", snapshot.error(), fault_count);
}

void Reader::LoadSome(const kv::Snapshot& snapshot, uint64_t root) {
  for (const uint64_t step : snapshot.step_numbers()) {
    if (is_dead()) return;
    if (!world().Chance(0.5) || CheckStep(snapshot, root, step)) continue;
    const auto& newest = model().StateAt(model().newest()).steps;
    const auto found = newest.find(step);
    // It was compacted and not deleted, so the next snapshot has it.
    const bool is_moved =
        found != newest.end() && found->second == model().StateAt(root).steps.at(step);
    if (is_moved) FollowMoved(step);
  }
}

void Reader::FollowMoved(uint64_t step) {
  if (is_replaced()) return;
  const uint64_t fault_count = storage()->fault_count();
  const uint64_t oldest = model().newest();
  const auto snapshot = store_->Latest();
  if (is_dead()) return;
  if (!snapshot) return CheckError("Latest", snapshot.error(), fault_count);
  const std::optional<uint64_t> root = model().FindRoot(**snapshot, oldest);
  if (!root || is_replaced() || !model().StateAt(*root).steps.contains(step)) return;
  newest_seen_ = *root;
  CheckStep(**snapshot, *root, step);
}

}  // namespace cairn::simulation
