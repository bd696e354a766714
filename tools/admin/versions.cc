#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <memory>
#include <optional>

#include "core/checkpoint_store.h"
#include "kv/base/options.h"
#include "kv/base/retention.h"
#include "kv/read/snapshot.h"
#include "kv/store.h"
#include "tools/admin/existing_store.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

Result<kv::RetentionPolicy> PolicyOf(const KeepOptions& options) {
  kv::RetentionPolicy policy{
      .keep_last = options.keep_last, .keep_every = options.keep_every, .keep_best = {}};
  for (const std::string& text : options.keep_best) {
    CAIRN_TRY_ASSIGN(kv::KeepBest best, kv::ParseKeepBest(text));
    policy.keep_best.push_back(std::move(best));
  }
  return policy;
}

std::vector<Argument> KeepArguments(KeepOptions& options) {
  return {{.name = "--keep-last",
           .target = &options.keep_last,
           .help = "Keep the last N steps",
           .value_name = "N"},
          {.name = "--keep-every",
           .target = &options.keep_every,
           .help = "Keep the steps that are multiples of N",
           .value_name = "N"},
          {.name = "--keep-best",
           .target = &options.keep_best,
           .help = "Keep the N steps with the lowest values of a metric, or with METRIC:N:max the "
                   "highest. May be repeated",
           .value_name = "METRIC:N"}};
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

}  // namespace

Result<void> AdminTag(const TagCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.store));
  if (!address.step) {
    return Fail(ErrorCode::kInvalidArgument, "name the step: kv-admin tag STORE@STEP NAME");
  }
  CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address.store));
  CAIRN_TRY(store->ChangeTags({{command.name, address.step}}));
  CAIRN_TRY(store->Close());
  out.WriteLine(fmt::format("step {} is {}@{}", *address.step, EscapeText(address.store),
                            EscapeText(command.name)));
  return {};
}

Verb TagVerb(TagCommand& command) {
  return {.name = "tag",
          .usage = "tag STORE@STEP NAME",
          .summary = "Names a step, so that it is addressed as STORE@NAME and never pruned",
          .arguments = {{.name = "STORE@STEP",
                         .target = &command.store,
                         .help = "Store and step",
                         .required = true},
                        {.name = "NAME",
                         .target = &command.name,
                         .help = "1 to 64 letters, digits, '.', '_' or '-', not only digits. If "
                                 "another step has it, it is moved",
                         .required = true}},
          .examples = {"kv-admin tag runs/gpt@4000 best"},
          .run = [&](Output& out) { return StatusOf(AdminTag(command, out)); }};
}

Result<void> AdminUntag(const TagCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.store));
  CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address.store));
  CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
  CAIRN_TRY_ASSIGN(const uint64_t step, snapshot->FindTag(command.name));
  if (address.step && *address.step != step) {
    return Fail(Error{
        .code = ErrorCode::kNotFound,
        .message = fmt::format("the tag '{0}' is that of step {1}; run kv-admin untag {2} {0}",
                               EscapeText(command.name), step, ShellWord(address.store)),
        .file = address.store,
        .step = *address.step});
  }
  CAIRN_TRY(store->ChangeTags({{command.name, std::nullopt}}));
  CAIRN_TRY(store->Close());
  out.WriteLine(fmt::format("step {} is not {} any more", step, EscapeText(command.name)));
  return {};
}

Verb UntagVerb(TagCommand& command) {
  return {
      .name = "untag",
      .usage = "untag STORE[@STEP] NAME",
      .summary = "Removes a tag; the step remains",
      .arguments = {{.name = "STORE[@STEP]",
                     .target = &command.store,
                     .help = "Store. With a step, the tag must be that of this step",
                     .required = true},
                    {.name = "NAME", .target = &command.name, .help = "The tag", .required = true}},
      .examples = {"kv-admin untag runs/gpt best"},
      .run = [&](Output& out) { return StatusOf(AdminUntag(command, out)); }};
}

Result<void> AdminPolicy(const PolicyCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.store));
  if (address.step) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a policy is for all steps; write {} without a step",
                            ShellWord(address.store)));
  }
  CAIRN_TRY_ASSIGN(const kv::RetentionPolicy policy, PolicyOf(command.keep));
  if (policy.keeps_any() && command.none) {
    return Fail(ErrorCode::kInvalidArgument, "--none removes the policy; omit it to set one");
  }
  if (!policy.keeps_any() && !command.none) {
    CAIRN_TRY_ASSIGN(const auto store, kv::Store::Open(address.store, kv::OpenMode::kRead));
    CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
    if (command.json) {
      WriteJson(out, PolicyJson(address.store, snapshot->retention()));
    } else {
      out.WriteLine(PolicyText(snapshot->retention()));
    }
    return {};
  }
  CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address.store));
  CAIRN_TRY(store->SetRetention(policy));
  CAIRN_TRY(store->Close());
  if (command.json) {
    WriteJson(out, PolicyJson(address.store, policy));
  } else {
    out.WriteLine(PolicyText(policy));
    if (policy.keeps_any()) {
      out.WriteLine(fmt::format("the next save applies it; kv-admin prune {} does so now",
                                ShellWord(address.store)));
    }
  }
  return {};
}

Verb PolicyVerb(PolicyCommand& command) {
  std::vector<Argument> arguments = {{.name = "STORE",
                                      .target = &command.store,
                                      .help = "Directory of the store",
                                      .required = true}};
  for (Argument& argument : KeepArguments(command.keep)) arguments.push_back(std::move(argument));
  arguments.push_back({.name = "--none",
                       .target = &command.none,
                       .help = "Remove the policy: saves delete nothing"});
  arguments.push_back(
      {.name = "--json", .target = &command.json, .help = "One JSON document instead of text"});
  return {.name = "policy",
          .usage = "policy STORE [--keep-last N] [--keep-every N] [--keep-best METRIC:N] [--none]",
          .summary = "Shows or sets which steps each save keeps",
          .arguments = std::move(arguments),
          .examples = {"kv-admin policy runs/gpt --keep-last 5 --keep-every 1000",
                       "kv-admin policy runs/gpt", "kv-admin policy runs/gpt --none"},
          .run = [&](Output& out) { return StatusOf(AdminPolicy(command, out)); }};
}

Result<void> AdminPrune(const PruneCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.store));
  if (address.step) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("prune chooses among all steps; write {} without a step",
                            ShellWord(address.store)));
  }
  CAIRN_TRY_ASSIGN(kv::RetentionPolicy policy, PolicyOf(command.keep));
  kv::StoreOptions options;
  if (command.no_grace) options.grace = std::chrono::milliseconds(0);
  CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address.store, options));
  CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
  if (!policy.keeps_any()) policy = snapshot->retention();
  if (!policy.keeps_any()) {
    return Fail(ErrorCode::kInvalidArgument,
                "state which steps remain, for example with --keep-last 3; the store has no policy "
                "(kv-admin policy)");
  }
  CAIRN_TRY_ASSIGN(const std::vector<kv::StepInfo> steps, snapshot->Steps());
  const std::vector<uint64_t> doomed = kv::StepsToDelete(policy, steps, snapshot->tags());
  CAIRN_TRY_ASSIGN(const auto report, store->Delete(doomed, command.dry_run));
  CAIRN_TRY(store->Close());
  out.WriteLine(fmt::format("{} {}, {} remain{}", command.dry_run ? "would delete" : "deleted",
                            Plural(doomed.size(), "step"), steps.size() - doomed.size(),
                            doomed.empty() ? "" : fmt::format(": {}", fmt::join(doomed, ", "))));
  if (report.freed_bytes > 0) {
    out.WriteLine(fmt::format("{} in {} {}", HumanBytes(report.freed_bytes),
                              Plural(report.segments, "segment"),
                              command.dry_run    ? "would be freed"
                              : command.no_grace ? "were freed"
                                                 : "are freed by the next change after the grace "
                                                   "period"));
  }
  return {};
}

Verb PruneVerb(PruneCommand& command) {
  std::vector<Argument> arguments = {{.name = "STORE",
                                      .target = &command.store,
                                      .help = "Directory of the store",
                                      .required = true}};
  for (Argument& argument : KeepArguments(command.keep)) arguments.push_back(std::move(argument));
  arguments.push_back({.name = "--dry-run",
                       .target = &command.dry_run,
                       .help = "Only report what would be deleted"});
  arguments.push_back({.name = "--no-grace",
                       .target = &command.no_grace,
                       .help = "Free the space at once, although readers may still use it"});
  return {.name = "prune",
          .usage = "prune STORE [--keep-last N] [--keep-every N] [--keep-best METRIC:N]",
          .summary =
              "Deletes all steps but those that an option, or else the policy of the store, "
              "or a tag keeps",
          .arguments = std::move(arguments),
          .examples = {"kv-admin prune runs/gpt --keep-last 5 --keep-every 1000 --dry-run",
                       "kv-admin prune runs/gpt --keep-last 1 --keep-best val_loss:3"},
          .run = [&](Output& out) { return StatusOf(AdminPrune(command, out)); }};
}

}  // namespace cairn::tools
