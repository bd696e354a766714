#include "core/upkeep/repair.h"

#include <fmt/format.h>

#include <memory>

#include "core/checkpoint_store.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

constexpr char kNotes[] =
    "Reads the complete store. Bytes that do not match their digests are looked for, by digest, "
    "in\n"
    "all steps of this store and of the sources, such as its mirror, and written to new segments.\n"
    "What is not found remains as it is, and reads continue to refuse it. For roots and tables, "
    "see\n"
    "kv-admin rebuild; for a step whose records are lost, kv-admin pull.\n"
    "Exit status: 0 no damage remains; 1 damage remains; 2 the repair could not be done.";

Result<std::string> StoreOf(const std::string& text) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(text));
  if (!address.step) return address.store;
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("a repair concerns all steps: write {} without a step",
                          ShellWord(address.store)));
}

void Print(const core::RepairReport& report, const RepairCommand& command, Output& out) {
  const bool dry_run = command.dry_run;
  if (report.found == 0) {
    out.WriteLine("no damage: every digest and record is correct");
    return;
  }
  out.WriteLine(fmt::format("{} found; {} damaged", Plural(report.found, "problem"),
                            Plural(report.damaged_chunks, "chunk")));
  out.WriteLine(
      fmt::format("{} {} from good copies, and {} {} of damaged segments",
                  dry_run ? "would write" : "wrote", Plural(report.repaired_chunks, "chunk"),
                  dry_run ? "would move" : "moved", Plural(report.moved_chunks, "good chunk")));
  if (!dry_run && report.rewritten_steps > 0) {
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

Json ReportJson(const std::string& store, const core::RepairReport& report) {
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

Result<int> AdminRepair(const RepairCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const std::string address, StoreOf(command.store));
  // A repair reads from the storage itself; a cache may have good copies of damaged bytes.
  const kv::StoreOptions uncached{.reader_cache = false};
  std::vector<std::unique_ptr<core::CheckpointStore>> sources;
  for (const std::string& source : command.sources) {
    CAIRN_TRY_ASSIGN(const std::string from, StoreOf(source));
    CAIRN_TRY_ASSIGN(auto opened, core::CheckpointStore::Open(from, kv::OpenMode::kRead, uncached));
    sources.push_back(std::move(opened));
  }
  // A mistyped address must not create an empty store, as an open for writing would.
  CAIRN_TRY_ASSIGN(auto store, core::CheckpointStore::Open(address, kv::OpenMode::kRead, uncached));
  if (!command.dry_run) {
    CAIRN_TRY_ASSIGN(store, core::CheckpointStore::Open(address, kv::OpenMode::kWrite, uncached));
  }
  core::RepairReport report;
  {
    ProgressLine progress("verifying:");
    const core::RepairOptions options{
        .dry_run = command.dry_run,
        .progress = progress.callback(),
        .record_progress = progress.callback("checking records:", ProgressUnit::kCount)};
    CAIRN_TRY_ASSIGN(report, core::Repair(*store, sources, options));
  }
  CAIRN_TRY(store->Close());
  if (command.json) {
    WriteJson(out, ReportJson(address, report));
  } else {
    Print(report, command, out);
  }
  return report.remaining.empty() ? kExitSuccess : kExitDiffers;
}

}  // namespace

Verb RepairVerb(RepairCommand& command) {
  return {.name = "repair",
          .usage = "repair STORE [--from STORE...]",
          .summary = "Replaces damaged bytes by good copies of other stores and steps",
          .arguments = {{.name = "STORE",
                         .target = &command.store,
                         .help = "Directory of the store, or another address",
                         .required = true},
                        {.name = "--from",
                         .target = &command.sources,
                         .help = "Another store that may have good copies; may be repeated",
                         .value_name = "STORE"},
                        {.name = "--dry-run",
                         .target = &command.dry_run,
                         .help = "Report what can be repaired, and change nothing"},
                        {.name = "--json", .target = &command.json, .help = "Print JSON"}},
          .examples = {"kv-admin repair runs/gpt --from s3://backup/gpt",
                       "kv-admin repair runs/gpt --dry-run"},
          .notes = kNotes,
          .run = [&](Output& out) { return AdminRepair(command, out); }};
}

}  // namespace cairn::tools
