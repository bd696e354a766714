// The operations of a writer.

#include "tests/simulation/writer.h"

#include <fmt/format.h>

#include <thread>
#include <utility>
#include <vector>

#include "kv/base/retention.h"
#include "kv/compact.h"
#include "kv/root/internal/root_log.h"

namespace cairn::simulation {
namespace {

constexpr uint64_t kMaxRequestsOfAKilled = 300;
constexpr int64_t kOvertakenPauseNs = 150 * kSecondNs;
constexpr int64_t kPauseAfterRootNs = 60 * kSecondNs;

}  // namespace

Writer::Writer(World& world, const std::string& name, Role role)
    : Participant(world, name), id_(world.NextWriter()), role_(role) {}

void Writer::Run() {
  if (role_ == Role::kUsual && world().Chance(0.3)) {
    storage()->KillAt(world().Between(1, kMaxRequestsOfAKilled));
  }
  if (!Open()) return;
  if (role_ == Role::kOvertaken) storage()->PauseAtNextRoot(kOvertakenPauseNs, kPauseAfterRootNs);
  if (role_ == Role::kAlsoOvertaken) storage()->PauseAtNextRoot(kOvertakenPauseNs, 0);
  if (role_ == Role::kOvertaker) ChangeOften();
  for (uint64_t left = world().Between(1, 5); left > 0 && can_continue(); --left) Act();
  Close();
}

bool Writer::Open() {
  const bool take_over =
      role_ == Role::kAlsoOvertaken || role_ == Role::kOvertaker || world().Chance(0.3);
  for (uint64_t left = world().Between(1, 4); left > 0 && can_continue(); --left) {
    if (TryOpen(take_over)) return true;
    Sleep(30 * kSecondNs);
  }
  return false;
}

bool Writer::TryOpen(bool take_over) {
  kv::StoreOptions options = world().Options();
  options.take_over = take_over;
  Operation operation = NewOperation(take_over ? "take over" : "open");
  operation.opens = true;
  const uint64_t fault_count = storage()->fault_count();
  const auto error = Perform(operation, [&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(store_, kv::Store::Open(storage(), kv::OpenMode::kWrite, options));
    return {};
  });
  if (!error && !is_dead()) SetStore(*store_);
  // A conflict with a lease, or with another open.
  if (error && error->code != ErrorCode::kConflict) CheckError("the open", *error, fault_count);
  return !error && !is_dead();
}

Operation Writer::NewOperation(const std::string& name) const {
  return {.name = name, .writer = id_};
}

Operation Writer::SaveOf(uint64_t step, uint64_t version, bool overwrite) const {
  Operation operation = NewOperation(
      fmt::format("{} step {} as version {}", overwrite ? "overwrite" : "save", step, version));
  operation.apply = [step, version](State& state, const kv::internal::Root& root) {
    state.Save(step, version, root);
  };
  return operation;
}

void Writer::Judge(const Operation& operation, const Error& error, uint64_t fault_count) {
  const bool was_unknown = std::exchange(is_unknown_, is_unknown_ || IsUnknown(error));
  is_over_ = is_over_ || is_unknown_;
  if (error.code == ErrorCode::kFailedPrecondition && was_unknown) return;
  const bool is_fenced = model().IsFenced(operation);
  if (error.code == ErrorCode::kConflict && is_fenced) {
    is_over_ = true;
    return;
  }
  // The compaction in the other thread has replaced segments of the base.
  if (error.code == ErrorCode::kConflict && has_two_threads_ && IsOfBase(error)) return;
  // Another writer, or the other thread, has deleted a step that this operation reads.
  if (error.code == ErrorCode::kNotFound && (is_fenced || has_two_threads_)) return;
  CheckError(operation.name, error, fault_count);
}

void Writer::Close() {
  if (world().Chance(0.2) && !is_dead()) return Note("leaves the store to the destructor");
  const uint64_t fault_count = storage()->fault_count();
  const auto closed = store_->Close();
  if (!closed) CheckError("close", closed.error(), fault_count);
  Note("closes");
}

std::optional<uint64_t> Writer::AnyStep() {
  const auto latest = store_->Latest();
  if (!latest || (*latest)->step_numbers().empty()) return std::nullopt;
  const std::vector<uint64_t>& numbers = (*latest)->step_numbers();
  return numbers[world().Between(0, numbers.size() - 1)];
}

uint64_t Writer::NewStep() {
  const auto latest = store_->Latest();
  if (!latest || (*latest)->step_numbers().empty()) return 1;
  return (*latest)->step_numbers().back() + world().Between(1, 2);
}

void Writer::Act() {
  if (world().Chance(0.01)) return ChangeOften();
  if (world().archive() != nullptr && world().Chance(0.6)) return UseArchive();
  switch (world().Between(0, 12)) {
    case 0:
      return Delete();
    case 1:
      return Tag();
    case 2:
      return Prune();
    case 3:
      return Compact();
    case 4:
      return Sleep(100 * kSecondNs);
    case 5:
      return SetCompression();
    case 6:
    case 7:
      return SaveDuringCompaction();
    default:
      return Save();
  }
}

void Writer::Change(Operation operation, const std::function<Result<void>()>& change) {
  const uint64_t fault_count = storage()->fault_count();
  const Operation copy = operation;
  const auto error = Perform(std::move(operation), change);
  if (error) Judge(copy, *error, fault_count);
}

void Writer::Save() {
  const std::optional<uint64_t> existing = AnyStep();
  const bool overwrite = existing && world().Chance(0.3);
  const uint64_t step = overwrite ? *existing : NewStep();
  const uint64_t version = world().NextVersion();
  Change(SaveOf(step, version, overwrite), [&]() -> Result<void> {
    CAIRN_TRY(kv::testing::SaveSample(*store_, world().Contents(step, version), overwrite));
    return {};
  });
}

void Writer::Delete() {
  const std::optional<uint64_t> step = AnyStep();
  if (!step) return;
  Operation operation = NewOperation(fmt::format("delete step {}", *step));
  operation.apply = [step](State& state, const auto&) { state.Delete(*step); };
  Change(std::move(operation), [&]() -> Result<void> {
    CAIRN_TRY(store_->Delete({&*step, 1}));
    return {};
  });
}

void Writer::Prune() {
  const uint64_t count = world().Between(0, 3);
  Operation operation = NewOperation(fmt::format("keep the last {} steps", count));
  operation.apply = [count](State& state, const auto&) { state.keep_last = count; };
  Change(std::move(operation), [&] { return store_->SetRetention({.keep_last = count}); });
}

void Writer::Tag() {
  const std::optional<uint64_t> step = AnyStep();
  if (!step) return;
  Operation operation = NewOperation(fmt::format("tag step {}", *step));
  operation.apply = [step](State& state, const auto&) { state.tags["best"] = *step; };
  Change(std::move(operation), [&] { return store_->ChangeTags({{"best", *step}}); });
}

void Writer::Compact() {
  Operation operation = NewOperation("compact");
  operation.moves_payload = true;
  Change(std::move(operation), [&]() -> Result<void> {
    CAIRN_TRY(kv::Compact(*store_, {.max_dead = 0}));
    return {};
  });
}

void Writer::SetCompression() {
  const bool compress = world().Chance(0.5);
  Operation operation = NewOperation(compress ? "compress" : "do not compress");
  operation.apply = [compress](State& state, const auto&) { state.compresses = compress; };
  Change(std::move(operation), [&] { return store_->SetCompression(compress); });
}

void Writer::ChangeOften() {
  const bool saves = world().Chance(0.3);
  const uint64_t count = kv::internal::kKeptRoots + world().Between(0, 10);
  for (uint64_t i = 0; i < count && can_continue(); ++i) saves ? Save() : SetCompression();
}

void Writer::SaveDuringCompaction() {
  has_two_threads_ = true;
  {
    const std::jthread compaction([this] { Compact(); });
    for (uint64_t left = world().Between(1, 3); left > 0 && can_continue(); --left) Save();
    if (can_continue()) Delete();
  }
  has_two_threads_ = false;
}

}  // namespace cairn::simulation
