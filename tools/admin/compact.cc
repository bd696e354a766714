// `kv-admin compact`: rewrites segments of which steps use only a part; and `kv-admin compression`:
// whether saves to a store compress.

#include <fmt/format.h>

#include <chrono>
#include <string>

#include "core/checkpoint_store.h"
#include "kv/base/options.h"
#include "kv/maintain/compact_options.h"
#include "kv/read/snapshot.h"
#include "tools/admin/verbs.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

struct CompactCommand {
  std::string store;
  double max_dead_percent = 15;
  std::string max_rate;
  bool fold = false;
  bool compress = false;
  bool dry_run = false;
  bool now = false;
  bool json = false;
};

Json CompactJson(const std::string& store, const kv::CompactReport& report, const FreedSpace& space,
                 double seconds) {
  return {{"store", JsonText(store)},
          {"live_bytes", report.live_bytes},
          {"segment_bytes", report.segment_bytes},
          {"old_segments", report.old_segments},
          {"old_bytes", report.old_bytes},
          {"moved_bytes", report.moved_bytes},
          {"new_segments", report.new_segments},
          {"new_bytes", report.new_bytes},
          {"folded_chunks", report.folded_chunks},
          {"compressed_chunks", report.compressed_chunks},
          {"rewritten_steps", report.rewritten_steps},
          {"freed_bytes", space.freed_bytes},
          {"waiting_bytes", space.waiting_bytes},
          {"checked", JsonText(space.checked)},
          {"seconds", seconds}};
}

void PrintCompact(const kv::CompactReport& report, const FreedSpace& space,
                  const CompactCommand& command, double seconds, Output& out) {
  const uint64_t dead_bytes = report.segment_bytes - report.live_bytes;
  out.WriteLine(fmt::format(
      "segments have {}: {} that steps use, {} that they do not ({:.1f} %)",
      HumanBytes(report.segment_bytes), HumanBytes(report.live_bytes), HumanBytes(dead_bytes),
      report.segment_bytes == 0
          ? 0.0
          : 100 * static_cast<double>(dead_bytes) / static_cast<double>(report.segment_bytes)));
  if (report.old_segments == 0) {
    out.WriteLine("nothing to do: no segment is worth rewriting");
    if (command.now) out.WriteLine(FreedText(space));
    return;
  }
  const std::string old_segments =
      fmt::format("{} of {}", Plural(report.old_segments, "segment"), HumanBytes(report.old_bytes));
  if (command.dry_run) {
    out.WriteLine(
        fmt::format("would rewrite {}, moving {}", old_segments, HumanBytes(report.moved_bytes)));
    return;
  }
  out.WriteLine(fmt::format("rewrote {} as {} of {}, and the records of {}, in {}", old_segments,
                            Plural(report.new_segments, "segment"), HumanBytes(report.new_bytes),
                            Plural(report.rewritten_steps, "step"), HumanSeconds(seconds)));
  if (report.folded_chunks > 0) {
    out.WriteLine(fmt::format("{} now without deltas", Plural(report.folded_chunks, "chunk")));
  }
  if (report.compressed_chunks > 0) {
    out.WriteLine(fmt::format("{} compressed", Plural(report.compressed_chunks, "chunk")));
  }
  out.WriteLine(FreedText(space));
}

/// Compacts the store, or with `dry_run` only computes what would be done, and prints the result.
Result<void> Compact(const CompactCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const std::string address,
                   ParseStore(command.store, "a compaction concerns all steps"));
  kv::CompactOptions options{.max_dead = command.max_dead_percent / 100,
                             .dry_run = command.dry_run,
                             .fold_all = command.fold};
  CAIRN_TRY_ASSIGN(options.max_bytes_per_second, ParseRate(command.max_rate));
  CAIRN_TRY_ASSIGN(const auto store, OpenToFree(address, command.now, command.dry_run));
  ProgressLine line("compacting:");
  options.progress = line.callback();
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(const kv::CompactReport report, store->Compact(options, command.compress));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  CAIRN_TRY_ASSIGN(const FreedSpace space,
                   FreeSpace(*store, command.now, {0, report.waiting_bytes}));
  if (command.json) {
    WriteJson(out, CompactJson(address, report, space, elapsed.count()));
  } else {
    PrintCompact(report, space, command, elapsed.count(), out);
  }
  return {};
}

struct CompressionCommand {
  std::string store;
  bool on = false;
  bool off = false;
  bool json = false;
};

/// Shows the setting of a store, or changes it.
Result<void> ShowOrSetCompression(const CompressionCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(
      const std::string address,
      ParseStore(command.store, "all steps of a store are compressed in the same way"));
  if (command.on && command.off) {
    return Fail(ErrorCode::kInvalidArgument, "--on and --off exclude each other; give one of them");
  }
  bool compress = command.on;
  if (command.on || command.off) {
    CAIRN_TRY_ASSIGN(const auto store, OpenExisting(address));
    CAIRN_TRY(store->kv().SetCompression(compress));
    CAIRN_TRY(store->Close());
  } else {
    CAIRN_TRY_ASSIGN(const auto store, kv::Store::Open(address, kv::OpenMode::kRead));
    CAIRN_TRY_ASSIGN(const auto snapshot, store->Latest());
    compress = snapshot->compresses_saves();
  }
  if (command.json) {
    WriteJson(out, {{"store", JsonText(address)}, {"compress", compress}});
    return {};
  }
  out.WriteLine(compress ? "on: saves compress what they write unless they state otherwise"
                         : "off: saves compress only if they are told to");
  if (command.on) {
    out.WriteLine(fmt::format("kv-admin compact {} --compress compresses what is stored",
                              ShellWord(address)));
  }
  return {};
}

}  // namespace

Verb CompactVerb() {
  const auto command = std::make_shared<CompactCommand>();
  return {.name = "compact",
          .usage = "compact STORE [--dry-run]",
          .summary = "Rewrites segments of which steps use only a part",
          .arguments = {StoreArgument(command->store),
                        Option("--max-dead", "PERCENT", &command->max_dead_percent,
                               "Rewrite segments of which more than this part is unused (15)",
                               std::pair<double, double>(0, 100)),
                        Flag("--compress", command->compress,
                             "Also compress chunks, for archives: loads take longer"),
                        Flag("--fold", command->fold,
                             "Write chunks without deltas if no other step uses what their "
                             "deltas are relative to"),
                        RateArgument(command->max_rate),
                        Flag("--dry-run", command->dry_run, "Only report what would be rewritten"),
                        NowArgument(command->now), JsonArgument(command->json)},
          .examples = {"kv-admin compact runs/gpt --dry-run",
                       "kv-admin compact runs/gpt --max-rate 200M"},
          .notes =
              "No step changes. The store must not be open for writing elsewhere: a job compacts "
              "its\n"
              "own store with store.compact(). If the command is stopped, what it has committed "
              "remains.",
          .run = [command](Output& out) { return StatusOf(Compact(*command, out)); }};
}

Verb CompressionVerb() {
  const auto command = std::make_shared<CompressionCommand>();
  return {.name = "compression",
          .usage = "compression STORE [--on] [--off] [--json]",
          .summary = "Shows or sets whether saves compress",
          .arguments = {StoreArgument(command->store),
                        Flag("--on", command->on, "Saves compress, unless they state otherwise"),
                        Flag("--off", command->off, "Saves compress only if they are told to"),
                        JsonArgument(command->json)},
          .examples = {"kv-admin compression runs/gpt --on", "kv-admin compression runs/gpt"},
          .run = [command](Output& out) { return StatusOf(ShowOrSetCompression(*command, out)); }};
}

}  // namespace cairn::tools
