// kv-dump: reads a store and never changes anything.

#include <csignal>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tools/common/command_line.h"
#include "tools/dump/statistics_text.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

/// Returns the function that runs a verb of the command line.
std::function<Result<int>(Output&)> Runs(Result<int> (*verb)(const DumpRun&), DumpRun& run) {
  return [verb, &run](Output& out) {
    run.out = &out;
    return verb(run);
  };
}

/// Returns the command line, whose arguments are parts of `run`.
CommandLine MakeCommandLine(DumpRun& run) {
  const Argument json = Flag("--json", run.json, "One JSON document with exact bytes");
  const Argument store = Required("STORE", &run.address, "Directory of the store");
  const Argument address =
      Required("STORE[@STEP]", &run.address, "STORE or STORE@STEP; the latest step without @STEP");
  const Argument patterns =
      Positional("PATTERN", &run.patterns,
                 "Keys to select: NAME selects all keys below it, * matches one element, ** any "
                 "number of elements, ? one character, [a-c] a set, [[] a [; !PATTERN excludes");
  const Argument key = Required("FQN", &run.second, "The key");
  const Argument where =
      Option("--where", "CONDITION", &run.where, std::string(StatisticsFilter::kHelp));
  std::vector<Verb> verbs = {
      {.name = "overview",
       .usage = "STORE",
       .summary = "Summary of a store; the verb itself may be omitted",
       .arguments = {json, store},
       .examples = {"kv-dump runs/gpt", "kv-dump runs/gpt --json | jq .latest.logical_bytes"},
       .run = Runs(DumpOverview, run)},
      {.name = "steps",
       .usage = "steps STORE",
       .summary = "One row per step: time, size, new bytes, base",
       .arguments = {json, store, where},
       .examples = {"kv-dump steps runs/gpt", "kv-dump steps runs/gpt --where 'nan>0'"},
       .run = Runs(DumpSteps, run)},
      {.name = "log",
       .usage = "log STORE",
       .summary = "The tree of steps: which step continued from which, forks and runs",
       .arguments = {json, store},
       .examples = {"kv-dump log runs/gpt",
                    "kv-dump log runs/gpt --json | jq '.steps[] | [.step, .parent.step]'"},
       .notes = "The newest step is first, and each step is above its parent. A parent that was "
                "deleted\n"
                "or replaced is shown as 'o'.",
       .run = Runs(DumpLog, run)},
      {.name = "keys",
       .usage = "keys STORE[@STEP] [PATTERN...]",
       .summary = "One row per key: tensors and plain values",
       .arguments = {json, address, patterns,
                     Flag("--statistics", run.statistics,
                          "Show what the save recorded about the values of tensors"),
                     where},
       .examples = {"kv-dump keys runs/gpt", "kv-dump keys runs/gpt@100 model.layers.0",
                    "kv-dump keys runs/gpt 'model.**.weight' '!**.attn'",
                    "kv-dump keys runs/gpt --where 'nan>0'"},
       .run = Runs(DumpKeys, run)},
      {.name = "chunks",
       .usage = "chunks STORE[@STEP] [PATTERN...]",
       .summary = "One row per chunk: box, digest, and where its bytes are stored",
       .arguments = {json, address, patterns},
       .examples = {"kv-dump chunks runs/gpt@100 model.wte.weight"},
       .run = Runs(DumpChunks, run)},
      {.name = "show",
       .usage = "show STORE[@STEP] FQN [--slice SLICE]",
       .summary = "Values and statistics of one key",
       .arguments = {json, address, key,
                     Option("--slice", "SLICE", &run.slice,
                            "Only this part, as Python writes it: 0:4,:,-1 or ...,0"),
                     Flag("--all", run.all, "Every value, not only the edges")},
       .examples = {"kv-dump show runs/gpt model.wte.weight",
                    "kv-dump show runs/gpt@100 model.wte.weight --slice 0:4,-8:",
                    "kv-dump show runs/gpt train.step"},
       .run = Runs(DumpShow, run)},
      {.name = "diff",
       .usage = "diff STORE@A STORE@B [PATTERN...]",
       .summary = "Keys and bytes that differ between two steps; status 1 if any differ",
       .arguments = {json, Required("STORE@A", &run.address, "The older step"),
                     Required("STORE@B", &run.second, "The newer step; @B for the same store"),
                     patterns,
                     Flag("--values", run.values,
                          "Read changed tensors and report by how much their values differ")},
       .examples = {"kv-dump diff runs/gpt@100 @200",
                    "kv-dump diff runs/gpt@100 runs/gpt@200 model --values"},
       .run = Runs(DumpDiff, run)},
      {.name = "history",
       .usage = "history STORE FQN",
       .summary = "The steps at which a key's bytes changed",
       .arguments = {json, store, key},
       .examples = {"kv-dump history runs/gpt model.wte.weight",
                    "kv-dump history runs/gpt train.lr"},
       .run = Runs(DumpHistory, run)},
      {.name = "blame",
       .usage = "blame STORE[@STEP] FQN [--values]",
       .summary = "The steps that changed a key on the way to a step, and by how much",
       .arguments = {json, address, key,
                     Flag("--values", run.values,
                          "Read the tensor before and after each change, and report by how much "
                          "the values differ")},
       .examples = {"kv-dump blame runs/gpt model.wte.weight",
                    "kv-dump blame runs/gpt@best model.wte.weight --values"},
       .notes = "Follows the parents of the step, so that other branches do not count; history "
                "compares\n"
                "all steps in the order of their numbers. Digests are compared, and payload is "
                "read only\n"
                "with --values, or if two steps cut the tensor into different chunks. MEAN BY is "
                "known if\n"
                "statistics were recorded.",
       .run = Runs(DumpBlame, run)},
      {.name = "fingerprint",
       .usage = "fingerprint STORE[@STEP] [PATTERN...]",
       .summary = "One number for the tensors of a step, however they are stored",
       .arguments = {json, address, patterns,
                     Option("--under", "KEY", &run.under,
                            "Only the tensors below this key, by their names without it"),
                     Flag("--sha256", run.sha256,
                          "SHA-256, which nobody can make collide; reads all bytes"),
                     Flag("--list", run.list,
                          "Print the text of which it is the hash, one line per tensor, to sign "
                          "or to compare it")},
       .examples = {"kv-dump fingerprint runs/gpt@100",
                    "kv-dump fingerprint runs/gpt@100 --under model",
                    "kv-dump fingerprint runs/gpt@100 --sha256 --list > gpt.fingerprint"},
       .notes =
           "Depends on the names, dtypes, shapes and bytes of tensors alone, not on chunks, ranks "
           "or\n"
           "formats; plain values do not count. docs/fingerprint.md defines it. Without --sha256,\n"
           "recorded digests are combined, and payload is read only of chunks that do not fit.",
       .run = Runs(DumpFingerprint, run)},
      {.name = "records",
       .usage = "records STORE[@STEP] [NAME]",
       .summary = "One row per record that an application has stored with the step",
       .arguments = {json, address,
                     Positional("NAME", &run.second, "Writes the bytes of this record instead")},
       .examples = {"kv-dump records runs/gpt@100", "kv-dump records runs/gpt config > config"},
       .run = Runs(DumpRecords, run)},
      {.name = "segments",
       .usage = "segments STORE",
       .summary = "One row per segment file",
       .arguments = {json, store},
       .examples = {"kv-dump segments runs/gpt"},
       .run = Runs(DumpSegments, run)},
      {.name = "space",
       .usage = "space STORE[@STEP] [PATTERN...] [--depth N]",
       .summary = "Where the bytes of a step are, by parts of the state",
       .arguments = {json, address, patterns,
                     Option("--depth", "N", &run.depth,
                            "Elements of the keys that rows have in common (2); 0: one row "
                            "per tensor"),
                     Flag("--segments", run.segments,
                          "Instead, the bytes of each segment that steps use (live), that "
                          "several steps use (shared), that none uses (dead), and that are "
                          "headers, digests and gaps (overhead)")},
       .examples = {"kv-dump space runs/gpt", "kv-dump space runs/gpt@100 optimizer --depth 3",
                    "kv-dump space runs/gpt --segments"},
       .run = Runs(DumpSpace, run)},
      {.name = "verify",
       .usage = "verify STORE[@STEP]",
       .summary = "Reads every byte and checks every digest; status 1 if damaged",
       .arguments = {json, address,
                     Option("--max-rate", "BYTES", &run.max_rate,
                            "Read at most this much per second, such as 50M, while the store "
                            "is in use; what is deleted in this time is not reported")},
       .examples = {"kv-dump verify runs/gpt", "kv-dump verify runs/gpt@100 --json",
                    "kv-dump verify runs/gpt --max-rate 50M"},
       .run = Runs(DumpVerify, run)},
      {.name = "report",
       .usage = "report STORE -o FILE",
       .summary = "Writes one self-contained HTML page: bytes, steps, changes, values, health",
       .arguments = {json, store,
                     Option("-o,--output", "FILE", &run.file,
                            "The page; an existing file is replaced"),
                     Flag("--all-steps", run.all_steps,
                          "Examine the records of every step; otherwise, evenly chosen "
                          "steps of a store with more than 4 million records")},
       .examples = {"kv-dump report runs/gpt -o report.html",
                    "kv-dump report runs/gpt --json | jq '.findings[].title'"},
       .notes = "Reads no payload. The page needs no network access.",
       .run = Runs(DumpReport, run)},
      {.name = "serve",
       .usage = "serve STORE [--port N]",
       .summary = "The same page live: follows a running job, with search, values and diffs",
       .arguments = {json, store,
                     Option("--port", "N", &run.port,
                            "The port; 0: any that is free. Otherwise 7707, or any that is "
                            "free if 7707 is in use",
                            ArgumentRange(std::pair<uint64_t, uint64_t>(0, 65535))),
                     Option("--address", "ADDRESS", &run.listen,
                            "The IPv4 address to listen on, 127.0.0.1 if it is not given. "
                            "With 0.0.0.0, everybody on the network can read the store"),
                     Option("--allow-host", "NAME", &run.hosts,
                            "Also accept requests for this host name, as from a proxy; '*': "
                            "for any name"),
                     Flag("--all-steps", run.all_steps,
                          "Examine the records of every step, as for report")},
       .examples = {"kv-dump serve runs/gpt", "kv-dump serve s3://bucket/runs/gpt --port 0"},
       .notes = "Read-only. Listens only on this machine unless --address states otherwise.",
       .run = Runs(DumpServe, run)}};
  return {.name = "kv-dump",
          .version = CAIRN_VERSION,
          .summary = "Reads a Cairn store; never changes anything.",
          .usage = "kv-dump STORE\n       kv-dump VERB STORE[@STEP] ...",
          .arguments = {json},
          .verbs = std::move(verbs),
          .notes =
              "`kv-dump VERB --help` lists the options of a verb, with examples.\n"
              "Exit status: 0 success; 1 differs or damaged (diff, verify); 2 failure.",
          .default_verb = "overview"};
}

}  // namespace
}  // namespace cairn::tools

int main(int argc, char** argv) {
  // `kv-dump keys STORE | head` ends quietly, as cat does, even if the parent ignores the signal.
  std::signal(SIGPIPE, SIG_DFL);
  cairn::tools::DumpRun run;
  return cairn::tools::RunProgram(cairn::tools::MakeCommandLine(run), argc, argv);
}
