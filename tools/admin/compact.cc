#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>

#include "core/checkpoint_store.h"
#include "kv/base/options.h"
#include "kv/maintain/compact_options.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

Result<kv::CompactOptions> OptionsOf(const CompactCommand& command) {
  kv::CompactOptions options{.max_dead = command.max_dead_percent / 100,
                             .dry_run = command.dry_run,
                             .fold_all = command.fold};
  if (command.max_rate.empty()) return options;
  CAIRN_TRY_ASSIGN(options.max_bytes_per_second, ParseBytes(command.max_rate));
  if (options.max_bytes_per_second > 0) return options;
  return Fail(ErrorCode::kInvalidArgument,
              "--max-rate must be at least one byte per second; write a rate such as 100M");
}

Json ReportJson(const std::string& store, const kv::CompactReport& report, double seconds) {
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
          {"seconds", seconds}};
}

void Print(const kv::CompactReport& report, const CompactCommand& command, double seconds,
           Output& out) {
  const uint64_t dead_bytes = report.segment_bytes - report.live_bytes;
  out.WriteLine(fmt::format(
      "segments have {}: {} that steps use, {} that they do not ({:.1f} %)",
      HumanBytes(report.segment_bytes), HumanBytes(report.live_bytes), HumanBytes(dead_bytes),
      report.segment_bytes == 0
          ? 0.0
          : 100 * static_cast<double>(dead_bytes) / static_cast<double>(report.segment_bytes)));
  if (report.old_segments == 0) {
    out.WriteLine("nothing to do: no segment is worth rewriting");
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
  if (!command.no_grace) {
    const auto grace = std::chrono::duration<double>(kv::StoreOptions().grace);
    out.WriteLine(fmt::format("the next change of the store after {} frees the old segments",
                              HumanSeconds(grace.count())));
  }
}

}  // namespace

Result<void> AdminCompact(const CompactCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.store));
  if (address.step) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a compaction concerns all steps: write {} without a step",
                            ShellWord(address.store)));
  }
  CAIRN_TRY_ASSIGN(kv::CompactOptions options, OptionsOf(command));
  // A mistyped address must not create an empty store, as an open for writing would.
  CAIRN_TRY(core::CheckpointStore::Open(address.store, kv::OpenMode::kRead));
  kv::StoreOptions open;
  if (command.no_grace) open.grace = std::chrono::milliseconds(0);
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kWrite, open));
  ProgressLine line("compacting:");
  options.progress = [&](const kv::CompactProgress& progress) {
    return line.Update(progress.done_bytes, progress.total_bytes);
  };
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(const kv::CompactReport report, store->Compact(options, command.compress));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  CAIRN_TRY(store->Close());
  if (command.json) {
    WriteJson(out, ReportJson(address.store, report, elapsed.count()));
  } else {
    Print(report, command, elapsed.count(), out);
  }
  return {};
}

Verb CompactVerb(CompactCommand& command) {
  return {.name = "compact",
          .usage = "compact STORE [--dry-run]",
          .summary = "Rewrites segments of which steps use only a part",
          .arguments = {{.name = "STORE",
                         .target = &command.store,
                         .help = "Directory of the store",
                         .required = true},
                        {.name = "--max-dead",
                         .target = &command.max_dead_percent,
                         .help = "Rewrite segments of which more than this part is unused (15)",
                         .value_name = "PERCENT",
                         .range = std::pair<double, double>(0, 100)},
                        {.name = "--compress",
                         .target = &command.compress,
                         .help = "Also compress chunks, for archives: loads take longer"},
                        {.name = "--fold",
                         .target = &command.fold,
                         .help = "Write chunks without deltas if no other step uses what their "
                                 "deltas are relative to"},
                        {.name = "--max-rate",
                         .target = &command.max_rate,
                         .help = "Limit of payload per second, such as 100M",
                         .value_name = "BYTES"},
                        {.name = "--dry-run",
                         .target = &command.dry_run,
                         .help = "Only report what would be rewritten"},
                        {.name = "--no-grace",
                         .target = &command.no_grace,
                         .help = "Free the space at once. Otherwise the old files remain for 60 s, "
                                 "for readers that still use them"},
                        {.name = "--json", .target = &command.json, .help = "Print JSON"}},
          .examples = {"kv-admin compact runs/gpt --dry-run",
                       "kv-admin compact runs/gpt --max-rate 200M"},
          .notes =
              "No step changes. The store must not be open for writing elsewhere: a job compacts "
              "its\n"
              "own store with store.compact(). If the command is stopped, what it has committed "
              "remains.",
          .run = [&](Output& out) { return StatusOf(AdminCompact(command, out)); }};
}

}  // namespace cairn::tools
