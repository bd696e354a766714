#include "tools/admin/versions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <memory>
#include <optional>

#include "core/checkpoint_store.h"
#include "kv/options.h"
#include "kv/retention.h"
#include "kv/snapshot.h"
#include "kv/store.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

/// A mistyped address must not create an empty store, as an open for writing would.
Result<std::unique_ptr<kv::Store>> OpenExisting(const std::string& store, bool no_grace = false) {
  CAIRN_TRY(kv::Store::Open(store, kv::OpenMode::kRead));
  kv::StoreOptions options;
  if (no_grace) options.grace = std::chrono::milliseconds(0);
  return kv::Store::Open(store, kv::OpenMode::kWrite, options);
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
        .message = fmt::format("the tag '{}' is that of step {}", EscapeText(command.name), step),
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

Result<void> AdminPrune(const PruneCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.store));
  if (address.step) {
    return Fail(ErrorCode::kInvalidArgument, "write the store without a step");
  }
  kv::RetentionPolicy policy{
      .keep_last = command.keep_last, .keep_every = command.keep_every, .keep_best = {}};
  for (const std::string& text : command.keep_best) {
    CAIRN_TRY_ASSIGN(kv::KeepBest best, kv::ParseKeepBest(text));
    policy.keep_best.push_back(std::move(best));
  }
  if (!policy.keeps_any()) {
    return Fail(ErrorCode::kInvalidArgument,
                "state which steps remain: --keep-last, --keep-every or --keep-best");
  }
  CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address.store, command.no_grace));
  CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
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
  return {.name = "prune",
          .usage = "prune STORE --keep-last N | --keep-every N | --keep-best METRIC:N",
          .summary = "Deletes all steps but those that an option or a tag keeps",
          .arguments = {{.name = "STORE",
                         .target = &command.store,
                         .help = "Directory of the store",
                         .required = true},
                        {.name = "--keep-last",
                         .target = &command.keep_last,
                         .help = "Keep the last N steps",
                         .value_name = "N"},
                        {.name = "--keep-every",
                         .target = &command.keep_every,
                         .help = "Keep the steps that are multiples of N",
                         .value_name = "N"},
                        {.name = "--keep-best",
                         .target = &command.keep_best,
                         .help = "Keep the N steps with the lowest values of a metric, or with "
                                 "METRIC:N:max the highest. May be repeated",
                         .value_name = "METRIC:N"},
                        {.name = "--dry-run",
                         .target = &command.dry_run,
                         .help = "Only report what would be deleted"},
                        {.name = "--no-grace",
                         .target = &command.no_grace,
                         .help = "Free the space at once, although readers may still use it"}},
          .examples = {"kv-admin prune runs/gpt --keep-last 5 --keep-every 1000 --dry-run",
                       "kv-admin prune runs/gpt --keep-last 1 --keep-best val_loss:3"},
          .run = [&](Output& out) { return StatusOf(AdminPrune(command, out)); }};
}

}  // namespace cairn::tools
