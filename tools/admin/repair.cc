// `kv-admin repair`: replaces damaged payload by good copies; and `kv-admin rebuild`: recovers a
// store whose newest root cannot be read.

#include "core/upkeep/repair.h"

#include <fmt/format.h>

#include <memory>

#include "core/checkpoint_store.h"
#include "kv/store.h"
#include "tools/admin/verbs.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr char kRepairNotes[] =
    "Reads the complete store. Pages that do not match their digests are looked for, by digest, "
    "in\n"
    "all steps of this store and of the sources, such as its mirror, and damaged segments are\n"
    "written again with them. What is not found remains as it is, and reads continue to refuse "
    "it.\n"
    "For roots and tables, see kv-admin rebuild; for a step whose records are lost, kv-admin "
    "pull.\n"
    "Exit status: 0 no damage remains; 1 damage remains; 2 the repair could not be done.";

constexpr char kWholeStore[] = "a repair concerns all steps";

struct RepairCommand {
  std::string store;
  std::vector<std::string> sources;
  bool dry_run = false;
  bool json = false;
};

void PrintRepair(const core::RepairReport& report, const RepairCommand& command, Output& out) {
  const bool dry_run = command.dry_run;
  if (report.found == 0) {
    out.WriteLine("no damage: every digest and record is correct");
    return;
  }
  out.WriteLine(fmt::format("{} found; {} damaged", Plural(report.found, "problem"),
                            Plural(report.damaged_chunks, "chunk")));
  out.WriteLine(
      fmt::format("{} {} from good copies, and {} {} of damaged segments",
                  dry_run ? "would repair" : "repaired", Plural(report.repaired_chunks, "chunk"),
                  dry_run ? "would move" : "moved", Plural(report.moved_chunks, "good chunk")));
  if (dry_run && report.written_bytes > 0) {
    out.WriteLine(fmt::format("would write {}", HumanBytes(report.written_bytes)));
  } else if (report.rewritten_steps > 0) {
    out.WriteLine(fmt::format("{} written; {} refer to the new places",
                              HumanBytes(report.written_bytes),
                              Plural(report.rewritten_steps, "step")));
  }
  for (const Error& error : report.remaining) {
    out.WriteLine("remains: " + EscapeText(error.ToString()));
  }
  if (!report.remaining.empty()) {
    out.WriteLine(
        out.Styled(Style::kDim,
                   "--from STORE names another store with good copies, such as a mirror; for lost "
                   "tables and roots, run kv-admin rebuild"));
  }
}

Json RepairJson(const std::string& store, const core::RepairReport& report) {
  Json remaining = Json::array();
  for (const Error& error : report.remaining) remaining.push_back(JsonText(error.ToString()));
  return {{"store", JsonText(store)},
          {"problems", report.found},
          {"damaged_chunks", report.damaged_chunks},
          {"repaired_chunks", report.repaired_chunks},
          {"moved_chunks", report.moved_chunks},
          {"written_bytes", report.written_bytes},
          {"rewritten_steps", report.rewritten_steps},
          {"remaining", remaining}};
}

Result<int> Repair(const RepairCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const std::string address, ParseStore(command.store, kWholeStore));
  // A repair reads from the storage itself; a cache may have good copies of damaged bytes.
  const kv::StoreOptions uncached{.reader_cache = false};
  std::vector<std::unique_ptr<core::CheckpointStore>> sources;
  for (const std::string& source : command.sources) {
    CAIRN_TRY_ASSIGN(const std::string from, ParseStore(source, kWholeStore));
    CAIRN_TRY_ASSIGN(auto opened, core::CheckpointStore::Open(from, kv::OpenMode::kRead, uncached));
    sources.push_back(std::move(opened));
  }
  CAIRN_TRY_ASSIGN(const auto store, command.dry_run ? core::CheckpointStore::Open(
                                                           address, kv::OpenMode::kRead, uncached)
                                                     : OpenExisting(address, uncached));
  ProgressLine progress("verifying:");
  const core::RepairOptions options{
      .dry_run = command.dry_run,
      .progress = progress.callback(),
      .record_progress = progress.callback("checking records:", ProgressUnit::kCount),
      .write_progress = progress.callback("writing:", ProgressUnit::kBytes)};
  CAIRN_TRY_ASSIGN(const core::RepairReport report, core::Repair(*store, sources, options));
  progress.Clear();
  CAIRN_TRY(store->Close());
  if (command.json) {
    WriteJson(out, RepairJson(address, report));
  } else {
    PrintRepair(report, command, out);
  }
  return report.remaining.empty() ? kExitSuccess : kExitDiffers;
}

/// Puts new roots that name the steps that can be recovered. kFailedPrecondition: there is nothing
/// to rebuild. kDataLoss: something could not be recovered; the rest was.
Result<void> Rebuild(const std::string& store, Output& out) {
  CAIRN_TRY_ASSIGN(const std::string address, ParseStore(store, "one root covers all steps"));
  auto rebuilt = kv::Store::Rebuild(address);
  if (!rebuilt) {
    Error error = std::move(rebuilt).error();
    if (error.code == ErrorCode::kFailedPrecondition) {
      error.message += fmt::format("; kv-dump verify {} checks the payload", ShellWord(address));
    }
    return Fail(std::move(error));
  }
  const auto& report = *rebuilt;
  out.WriteLine(fmt::format("the new root names {}", Plural(report.steps, "step")));
  for (const Error& note : report.notes) out.WriteLine("note: " + note.ToString());
  for (const Error& lost : report.lost) out.WriteLine("not recovered: " + lost.ToString());
  if (report.lost.empty()) return {};
  return Fail(Error{
      .code = ErrorCode::kDataLoss,
      .hint = Hint::kStated,
      .message = fmt::format(
          "{} could not be recovered; nothing was removed; kv-admin pull MIRROR {} copies "
          "steps that a mirror has",
          Plural(report.lost.size(), "object or step", "objects or steps"), ShellWord(address))});
}

}  // namespace

Verb RepairVerb() {
  const auto command = std::make_shared<RepairCommand>();
  return {.name = "repair",
          .usage = "repair STORE [--from STORE...]",
          .summary = "Replaces damaged bytes by good copies of other stores and steps",
          .arguments = {StoreArgument(command->store),
                        Option("--from", "STORE", &command->sources,
                               "Another store that may have good copies; may be repeated"),
                        Flag("--dry-run", command->dry_run,
                             "Report what can be repaired, and change nothing"),
                        JsonArgument(command->json)},
          .examples = {"kv-admin repair runs/gpt --from s3://backup/gpt",
                       "kv-admin repair runs/gpt --dry-run"},
          .notes = kRepairNotes,
          .run = [command](Output& out) { return Repair(*command, out); }};
}

Verb RebuildVerb() {
  const auto store = std::make_shared<std::string>();
  return {.name = "rebuild",
          .usage = "rebuild STORE",
          .summary = "Recovers a store whose roots or tables cannot be read",
          .arguments = {StoreArgument(*store)},
          .examples = {"kv-admin rebuild runs/gpt"},
          .run = [store](Output& out) { return StatusOf(Rebuild(*store, out)); }};
}

}  // namespace cairn::tools
