// The saves of a job.

#include "tests/simulation/job.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace cairn::simulation {
namespace {

constexpr uint64_t kMaxRequestsOfAKilled = 200;

kv::BeginOptions OptionsOf(const JobPlan& plan, uint32_t rank, std::string attempt,
                           bool overwrite) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(plan.patience_ns);
  return {.overwrite = overwrite,
          .rank = rank,
          .world_size = plan.world_size,
          .attempt = std::move(attempt),
          .deadline = deadline,
          .decision_deadline = deadline};
}

/// Returns whether the message leaves open whether the step exists.
bool LeavesOpen(const Error& error) {
  return IsUnknown(error) || error.message.find("may or may not exist") != std::string::npos ||
         error.message.find("is not committed yet") != std::string::npos;
}

}  // namespace

void RankZero::Run() {
  if (world().Chance(0.2)) storage()->KillAt(world().Between(1, kMaxRequestsOfAKilled));
  if (Open()) Begin();
  plan_.has_begun = true;
  world().scheduler().WakeAll(&plan_);
  if (plan_.session.empty()) return;
  for (JobPlan::Save& save : plan_.saves) {
    if (can_continue()) Save(save);
  }
  // The others may still want to read the outcome, which a new writer removes.
  Sleep(kSecondNs);
  Close();
}

void RankZero::Begin() {
  const auto session = store().OpenSession();
  if (!session) return Note(fmt::format("no session: {}", session.error().ToString()));
  plan_.session = *session;
  uint64_t step = NewStep();
  for (uint64_t left = world().Between(1, 3); left > 0; --left) {
    const bool overwrite = !plan_.saves.empty() && world().Chance(0.3);
    if (!overwrite && !plan_.saves.empty()) ++step;
    plan_.saves.push_back({.step = step, .version = world().NextVersion(), .overwrite = overwrite});
  }
}

void RankZero::Save(JobPlan::Save& save) {
  Operation operation = SaveOf(save.step, save.version, save.overwrite);
  operation.apply = [&save, apply = operation.apply](State& state, const auto& root) {
    save.is_committed = true;
    apply(state, root);
  };
  const uint64_t fault_count = storage()->fault_count();
  const std::string attempt = store().NextAttempt(save.step);
  const auto error = Perform(operation, [&]() -> Result<void> {
    std::unique_ptr<kv::StepWriter> prepared;
    const auto saved =
        kv::testing::SaveSampleOfRank(store(), world().Contents(save.step, save.version),
                                      OptionsOf(plan_, 0, attempt, save.overwrite), prepared);
    if (saved) return {};
    (void)store().FailAttempt(attempt, 0, saved.error());
    return Fail(saved.error());
  });
  // Others may be late, or have failed, or refer to a step that is not the base of this one.
  const bool may_be_others =
      error && (error->code == ErrorCode::kUnavailable || error->message.starts_with("rank ") ||
                (plan_.has_gone_on && IsOfBase(*error)));
  if (error && (!may_be_others || IsUnknown(*error))) Judge(operation, *error, fault_count);
}

void OtherRank::Run() {
  while (!plan_.has_begun) world().scheduler().WaitFor(&plan_);
  if (plan_.session.empty()) return;
  if (world().Chance(0.2)) storage()->KillAt(world().Between(1, kMaxRequestsOfAKilled));
  if (!Join()) return;
  for (const JobPlan::Save& save : plan_.saves) {
    if (!is_dead()) Save(save);
  }
}

bool OtherRank::Join() {
  kv::StoreOptions options = world().Options();
  options.session = plan_.session;
  for (int left = 3; left > 0 && !is_dead(); --left) {
    auto opened = kv::Store::Open(storage(), kv::OpenMode::kJoinSession, options);
    if (opened) {
      store_ = *std::move(opened);
      SetStore(*store_);
      return true;
    }
    // Rank 0 may have closed the store.
    if (opened.error().code != ErrorCode::kFailedPrecondition) Judge("join", opened.error());
    Sleep(kSecondNs);
  }
  return false;
}

void OtherRank::Save(const JobPlan::Save& save) {
  const std::string attempt = store_->NextAttempt(save.step);
  const std::string call = fmt::format("the part of step {}", save.step);
  std::unique_ptr<kv::StepWriter> prepared;
  const auto part =
      kv::testing::SaveSampleOfRank(*store_, world().Contents(save.step, save.version),
                                    OptionsOf(plan_, rank_, attempt, save.overwrite), prepared);
  Note(fmt::format("{}: {}", call, part ? "done" : part.error().ToString()));
  if (!part) {
    plan_.has_gone_on = true;
    (void)store_->FailAttempt(attempt, rank_, part.error());
    return Judge(call, part.error());
  }
  AwaitDecision(*prepared, save);
}

void OtherRank::AwaitDecision(kv::StepWriter& writer, const JobPlan::Save& save) {
  const auto decided = writer.AwaitDecision();
  if (is_dead()) return;
  Note(fmt::format("the decision: {}", decided ? "done" : decided.error().ToString()));
  if (decided && !save.is_committed) Report("a rank believes in a step that was not committed");
  if (decided) return;
  plan_.has_gone_on = true;
  if (save.is_committed && !LeavesOpen(decided.error()) && !is_replaced()) {
    Report(fmt::format("a committed step failed: {}", decided.error().ToString()));
  }
  Judge("the decision", decided.error());
}

/// Whatever failed on any rank, nothing is damaged.
void OtherRank::Judge(const std::string& call, const Error& error) {
  switch (error.code) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kConflict:
    case ErrorCode::kNotFound:
    case ErrorCode::kFailedPrecondition:
      return;
    default:
      CheckError(call, error, storage()->fault_count());
  }
}

}  // namespace cairn::simulation
