// Applies operations, and compares what processes see with the result.

#include "tests/simulation/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kv/root/internal/root_log.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::simulation {
namespace {

ModelStep ModelStepOf(const kv::StepInfo& step) {
  return {.generation = step.generation,
          .saved_unix_ns = step.created_unix_ns,
          .attempt = step.attempt,
          .parent = step.parent,
          .is_edit_of_itself = step.base_step == step.step};
}

/// Returns what the snapshot shows of a state: everything but the versions.
Result<State> Shown(const kv::Snapshot& snapshot) {
  State state;
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, snapshot.Steps());
  for (const kv::StepInfo& step : steps) state.steps[step.step] = ModelStepOf(step);
  state.tags = {snapshot.tags().begin(), snapshot.tags().end()};
  state.keep_last = snapshot.retention().keep_last;
  state.compresses = snapshot.compresses_saves();
  return state;
}

State WithoutVersions(State state) {
  for (auto& [number, step] : state.steps) step.version = 0;
  return state;
}

}  // namespace

void State::Add(uint64_t step, uint64_t version, const kv::internal::Root& root) {
  const auto entry =
      std::ranges::find(root.recent, step, [](const auto& e) { return e->info.step; });
  ModelStep& added = steps[step] =
      entry == root.recent.end() ? ModelStep() : ModelStepOf((*entry)->info);
  added.version = version;
  added.generation = root.number;
}

std::optional<uint64_t> State::Before(uint64_t step) const {
  const ModelStep& from = steps.at(step);
  uint64_t limit = step;
  if (from.parent) {
    for (const auto& [number, found] : steps) {
      const bool is_parent = found.attempt == from.parent->attempt ||
                             (number == from.parent->step && found.is_edit_of_itself);
      if (is_parent && number < step && found.saved_unix_ns <= from.saved_unix_ns) return number;
    }
    limit = std::min(limit, from.parent->step);
  }
  std::optional<uint64_t> last;
  for (const auto& [number, found] : steps) {
    if (number >= limit || found.saved_unix_ns > from.saved_unix_ns) continue;
    if (found.parent && found.parent->step >= number && found.parent->step < limit) continue;
    if (!last || found.saved_unix_ns >= steps.at(*last).saved_unix_ns) last = number;
  }
  return last;
}

void State::Save(uint64_t step, uint64_t version, const kv::internal::Root& root) {
  Add(step, version, root);
  if (keep_last == 0) return;
  std::set<uint64_t> on_line;
  for (std::optional<uint64_t> next = step; next && on_line.size() < keep_last;) {
    on_line.insert(*next);
    next = Before(*next);
  }
  uint64_t highest = keep_last;
  for (auto each = std::next(steps.find(step)); each != steps.begin();) {
    --each;
    const bool is_tagged =
        std::ranges::any_of(tags, [&](const auto& tag) { return tag.second == each->first; });
    const bool is_kept = is_tagged || highest > 0 || on_line.contains(each->first);
    if (highest > 0) --highest;
    if (!is_kept) each = steps.erase(each);
  }
}

void State::Delete(uint64_t step) {
  steps.erase(step);
  std::erase_if(tags, [step](const auto& tag) { return tag.second == step; });
}

Model::Model(Report fail, int64_t grace_ns) : fail_(std::move(fail)), grace_ns_(grace_ns) {}

Operation& Model::Begin(Operation operation) {
  operations_.push_back(std::move(operation));
  return operations_.back();
}

void Model::ObjectPut(const std::string& name) {
  if (!kv::internal::ParseObjectName(name)) return;
  if (!put_names_.insert(name).second) fail_(fmt::format("{} was written twice", name));
}

void Model::RootPut(uint64_t number, Operation* operation, std::span<const std::byte> bytes) {
  if (operation == nullptr) return fail_(fmt::format("root {} was put by a reader", number));
  if (number > newest() + 1) {
    return fail_(fmt::format("root {} was put after root {}", number, newest()));
  }
  if (number <= newest()) {
    // The number was free for the second time. Such a root is ignored and must not be acknowledged.
    if (number + kv::internal::kKeptRoots > newest()) {
      fail_(fmt::format("root {} was put twice, and the newest one is {}", number, newest()));
    }
    return;
  }
  const RootState& last = roots_.back();
  const bool follows_other =
      last.operation != nullptr && last.operation->writer != operation->writer;
  if (follows_other && !operation->opens) {
    fail_(
        fmt::format("{} put root {}, but another writer had taken over", operation->name, number));
  }
  RootState next{.state = last.state, .operation = operation};
  const kv::internal::Root root = kv::internal::DecodeRoot(bytes).value();
  const bool takes_effect = !operation->takes_effect || operation->takes_effect(root);
  if (takes_effect && operation->apply) operation->apply(next.state, root);
  if (takes_effect) operation->roots.push_back(number);
  roots_.push_back(std::move(next));
}

bool Model::IsFenced(const Operation& operation) const {
  return roots_.back().operation == nullptr || roots_.back().operation->writer != operation.writer;
}

void Model::CheckOutcome(const Operation& operation, const Error* error) {
  const bool is_performed = !operation.roots.empty();
  if (error == nullptr && !is_performed) {
    fail_(fmt::format("{} was acknowledged, but not performed", operation.name));
  }
  if (error != nullptr && is_performed && !IsUnknown(*error)) {
    fail_(fmt::format("{} was performed as root {}, but returned: {}", operation.name,
                      operation.roots.front(), error->ToString()));
  }
}

std::optional<uint64_t> Model::FindRoot(const kv::Snapshot& snapshot, uint64_t oldest) {
  const Result<State> shown = Shown(snapshot);
  if (!shown) return std::nullopt;  // an entry of an old step could not be read
  for (uint64_t root = oldest; root < roots_.size(); ++root) {
    if (WithoutVersions(roots_[root].state) == *shown) return root;
  }
  fail_(fmt::format("a snapshot shows {}, which is not a state since root {}; the newest one is {}",
                    Describe(*shown), oldest, Describe(roots_.back().state)));
  return std::nullopt;
}

bool Model::MayBeGone(uint64_t root, uint64_t step, int64_t now_ns) const {
  const auto found = roots_[root].state.steps.find(step);
  for (uint64_t later = root + 1; later < roots_.size(); ++later) {
    const auto& steps = roots_[later].state.steps;
    const auto same = steps.find(step);
    const bool is_gone = same == steps.end() || same->second != found->second ||
                         roots_[later].operation->moves_payload;
    if (is_gone) return now_ns >= roots_[later].operation->begin_ns + grace_ns_;
  }
  return false;
}

bool IsUnknown(const Error& error) {
  return error.message.find("unknown whether") != std::string::npos;
}

bool IsOfBase(const Error& error) {
  return error.message.find("was deleted or replaced during the save") != std::string::npos;
}

std::string Describe(const State& state) {
  std::string text = "{";
  for (const auto& [number, step] : state.steps) {
    text += fmt::format(" step {} of root {}", number, step.generation);
  }
  for (const auto& [tag, step] : state.tags) text += fmt::format(" tag {}={}", tag, step);
  if (state.keep_last > 0) text += fmt::format(" keeps {}", state.keep_last);
  return text + (state.compresses ? " compresses }" : " }");
}

}  // namespace cairn::simulation
