// `kv-admin delete`, `tag`, `untag`, `policy` and `prune`: names of steps, and which steps remain.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "kv/base/options.h"
#include "kv/base/retention.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

struct DeleteCommand {
  std::string store;
  std::vector<uint64_t> steps;
  bool dry_run = false;
  bool now = false;
};

/// Deletes the steps, or with `dry_run` only computes what would be freed, and prints the result.
Result<void> Delete(const DeleteCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const std::string address,
                   ParseStore(command.store, "the steps follow the store after a space"));
  CAIRN_TRY_ASSIGN(const auto store, OpenToFree(address, command.now, command.dry_run));
  CAIRN_TRY_ASSIGN(const auto report, store->Delete(command.steps, command.dry_run));
  CAIRN_TRY_ASSIGN(const FreedSpace space,
                   FreeSpace(*store, command.now, {report.freed_bytes, report.waiting_bytes}));
  out.WriteLine(fmt::format("{} {}; {}", command.dry_run ? "would delete" : "deleted",
                            Plural(report.steps, "step"), FreedText(space)));
  return {};
}

// --- Tags

struct TagCommand {
  std::string store;
  std::string name;
};

Result<void> Tag(const TagCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.store));
  if (!address.step) {
    return Fail(ErrorCode::kInvalidArgument, "name the step: kv-admin tag STORE@STEP NAME");
  }
  CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address.store));
  CAIRN_TRY(store->kv().ChangeTags({{command.name, address.step}}));
  CAIRN_TRY(store->Close());
  out.WriteLine(fmt::format("step {} is {}@{}", *address.step, EscapeText(address.store),
                            EscapeText(command.name)));
  return {};
}

/// The store may have no step; with one, the tag must name this step.
Result<void> Untag(const TagCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.store));
  CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address.store));
  CAIRN_TRY_ASSIGN(const auto snapshot, store->kv().Latest());
  CAIRN_TRY_ASSIGN(const uint64_t step, snapshot->FindTag(command.name));
  if (address.step && *address.step != step) {
    return Fail(Error{
        .code = ErrorCode::kNotFound,
        .message = fmt::format("the tag '{0}' is that of step {1}; run kv-admin untag {2} {0}",
                               EscapeText(command.name), step, ShellWord(address.store)),
        .file = address.store,
        .step = *address.step});
  }
  CAIRN_TRY(store->kv().ChangeTags({{command.name, std::nullopt}}));
  CAIRN_TRY(store->Close());
  out.WriteLine(fmt::format("step {} is not {} any more", step, EscapeText(command.name)));
  return {};
}

// --- Which steps remain

struct KeepCommand {
  std::string store;
  uint64_t keep_last = 0;
  uint64_t keep_every = 0;
  std::vector<std::string> keep_best;  // as kv::ParseKeepBest parses them
  bool none = false;                   // policy: removes the policy
  bool json = false;                   // policy
  bool dry_run = false;                // prune
  bool now = false;                    // prune
};

Result<kv::RetentionPolicy> PolicyOf(const KeepCommand& command) {
  kv::RetentionPolicy policy{
      .keep_last = command.keep_last, .keep_every = command.keep_every, .keep_best = {}};
  for (const std::string& text : command.keep_best) {
    CAIRN_TRY_ASSIGN(kv::KeepBest best, kv::ParseKeepBest(text));
    policy.keep_best.push_back(std::move(best));
  }
  return policy;
}

/// STORE and the steps that remain.
std::vector<Argument> KeepArguments(KeepCommand& command) {
  return {
      StoreArgument(command.store),
      Option("--keep-last", "N", &command.keep_last, "Keep the last N steps"),
      Option("--keep-every", "N", &command.keep_every, "Keep the steps that are multiples of N"),
      Option("--keep-best", "METRIC:N", &command.keep_best,
             "Keep the N steps with the lowest values of a metric, or with METRIC:N:max the "
             "highest. May be repeated")};
}

Json PolicyJson(const std::string& store, const kv::RetentionPolicy& policy) {
  Json best = Json::array();
  for (const kv::KeepBest& one : policy.keep_best) {
    best.push_back(JsonText(kv::FormatKeepBest(one)));
  }
  return {{"store", JsonText(store)},
          {"keep_last", policy.keep_last},
          {"keep_every", policy.keep_every},
          {"keep_best", std::move(best)}};
}

std::string PolicyText(const kv::RetentionPolicy& policy) {
  if (!policy.keeps_any()) return "no policy: saves delete nothing";
  std::vector<std::string> parts;
  if (policy.keep_last > 0) parts.push_back(fmt::format("the last {}", policy.keep_last));
  if (policy.keep_every > 0) parts.push_back(fmt::format("multiples of {}", policy.keep_every));
  for (const kv::KeepBest& best : policy.keep_best) {
    parts.push_back(fmt::format("the {} with the {} {}", best.count,
                                best.highest ? "highest" : "lowest", EscapeText(best.metric)));
  }
  return fmt::format("each save keeps, of all steps: {}; and those with tags",
                     fmt::join(parts, ", "));
}

/// Shows the policy that is kept in a store, or sets it.
Result<void> ShowOrSetPolicy(const KeepCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const std::string address,
                   ParseStore(command.store, "a policy is for all steps"));
  CAIRN_TRY_ASSIGN(kv::RetentionPolicy policy, PolicyOf(command));
  const bool sets = policy.keeps_any();
  if (sets && command.none) {
    return Fail(ErrorCode::kInvalidArgument, "--none removes the policy; omit it to set one");
  }
  if (sets || command.none) {
    CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address));
    CAIRN_TRY(store->kv().SetRetention(policy));
    CAIRN_TRY(store->Close());
  } else {
    CAIRN_TRY_ASSIGN(const auto store, kv::Store::Open(address, kv::OpenMode::kRead));
    CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
    policy = snapshot->retention();
  }
  if (command.json) {
    WriteJson(out, PolicyJson(address, policy));
    return {};
  }
  out.WriteLine(PolicyText(policy));
  if (sets) {
    out.WriteLine(
        fmt::format("the next save applies it; kv-admin prune {} does so now", ShellWord(address)));
  }
  return {};
}

/// Without an option that keeps steps, the policy of the store decides.
Result<void> Prune(const KeepCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const std::string address,
                   ParseStore(command.store, "prune chooses among all steps"));
  CAIRN_TRY_ASSIGN(kv::RetentionPolicy policy, PolicyOf(command));
  CAIRN_TRY_ASSIGN(const auto store, OpenToFree(address, command.now, command.dry_run));
  CAIRN_TRY_ASSIGN(const auto snapshot, store->kv().Latest());
  if (!policy.keeps_any()) policy = snapshot->retention();
  if (!policy.keeps_any()) {
    return Fail(ErrorCode::kInvalidArgument,
                "state which steps remain, for example with --keep-last 3; the store has no policy "
                "(kv-admin policy)");
  }
  CAIRN_TRY_ASSIGN(const std::vector<uint64_t> doomed, snapshot->StepsToDelete(policy));
  CAIRN_TRY_ASSIGN(const auto report, store->Delete(doomed, command.dry_run));
  CAIRN_TRY_ASSIGN(const FreedSpace space,
                   FreeSpace(*store, command.now, {report.freed_bytes, report.waiting_bytes}));
  out.WriteLine(fmt::format("{} {}, {} remain{}", command.dry_run ? "would delete" : "deleted",
                            Plural(doomed.size(), "step"),
                            snapshot->step_numbers().size() - doomed.size(),
                            doomed.empty() ? "" : fmt::format(": {}", fmt::join(doomed, ", "))));
  out.WriteLine(FreedText(space));
  return {};
}

}  // namespace

Verb DeleteVerb() {
  const auto command = std::make_shared<DeleteCommand>();
  return {.name = "delete",
          .usage = "delete STORE STEP... [--dry-run] [--now]",
          .summary = "Deletes whole steps; bytes that other steps use remain",
          .arguments = {StoreArgument(command->store),
                        Required("STEP", &command->steps, "Numbers of the steps"),
                        Flag("--dry-run", command->dry_run, "Only report what would be deleted"),
                        NowArgument(command->now)},
          .examples = {"kv-admin delete runs/gpt 100 200 --dry-run",
                       "kv-admin delete runs/gpt 100 --now"},
          .run = [command](Output& out) { return StatusOf(Delete(*command, out)); }};
}

Verb TagVerb() {
  const auto command = std::make_shared<TagCommand>();
  return {.name = "tag",
          .usage = "tag STORE@STEP NAME",
          .summary = "Names a step, so that it is addressed as STORE@NAME and never pruned",
          .arguments = {Required("STORE@STEP", &command->store, "Store and step"),
                        Required("NAME", &command->name,
                                 "1 to 64 letters, digits, '.', '_' or '-', not only digits. If "
                                 "another step has it, it is moved")},
          .examples = {"kv-admin tag runs/gpt@4000 best"},
          .run = [command](Output& out) { return StatusOf(Tag(*command, out)); }};
}

Verb UntagVerb() {
  const auto command = std::make_shared<TagCommand>();
  return {.name = "untag",
          .usage = "untag STORE[@STEP] NAME",
          .summary = "Removes a tag; the step remains",
          .arguments = {Required("STORE[@STEP]", &command->store,
                                 "Store. With a step, the tag must be that of this step"),
                        Required("NAME", &command->name, "The tag")},
          .examples = {"kv-admin untag runs/gpt best"},
          .run = [command](Output& out) { return StatusOf(Untag(*command, out)); }};
}

Verb PolicyVerb() {
  const auto command = std::make_shared<KeepCommand>();
  return {
      .name = "policy",
      .usage = "policy STORE [--keep-last N] [--keep-every N] [--keep-best METRIC:N] [--none]",
      .summary = "Shows or sets which steps each save keeps",
      .arguments = Joined(KeepArguments(*command),
                          {Flag("--none", command->none, "Remove the policy: saves delete nothing"),
                           JsonArgument(command->json)}),
      .examples = {"kv-admin policy runs/gpt --keep-last 5 --keep-every 1000",
                   "kv-admin policy runs/gpt", "kv-admin policy runs/gpt --none"},
      .run = [command](Output& out) { return StatusOf(ShowOrSetPolicy(*command, out)); }};
}

Verb PruneVerb() {
  const auto command = std::make_shared<KeepCommand>();
  return {.name = "prune",
          .usage = "prune STORE [--keep-last N] [--keep-every N] [--keep-best METRIC:N]",
          .summary =
              "Deletes all steps but those that an option, or else the policy of the store, "
              "or a tag keeps",
          .arguments = Joined(KeepArguments(*command), {Flag("--dry-run", command->dry_run,
                                                             "Only report what would be deleted"),
                                                        NowArgument(command->now)}),
          .examples = {"kv-admin prune runs/gpt --keep-last 5 --keep-every 1000 --dry-run",
                       "kv-admin prune runs/gpt --keep-last 1 --keep-best val_loss:3"},
          .run = [command](Output& out) { return StatusOf(Prune(*command, out)); }};
}

}  // namespace cairn::tools
