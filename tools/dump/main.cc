// kv-dump: reads a store and never changes anything.

#include <csignal>
#include <string>
#include <vector>

#include "tools/common/program.h"
#include "tools/dump/statistics_text.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {
namespace {

/// The user's arguments. Each verb reads its part.
struct Values {
  std::string max_rate;
  bool json = false;
  std::string address;
  std::string second;  // the second step of diff, the FQN of show
  std::vector<std::string> patterns;
  bool compare_values = false;
  uint64_t depth = 2;
  bool segments = false;
  ShowOptions show;
  bool statistics = false;
  std::string where;
  ReportRequest report;
  ServeRequest serve;
};

Argument JsonFlag(Values& values) {
  return {.name = "--json", .target = &values.json, .help = "One JSON document with exact bytes"};
}

Argument StoreArgument(Values& values) {
  return {.name = "STORE",
          .target = &values.address,
          .help = "Directory of the store",
          .required = true};
}

Argument AddressArgument(Values& values) {
  return {.name = "STORE[@STEP]",
          .target = &values.address,
          .help = "STORE or STORE@STEP; the latest step without @STEP",
          .required = true};
}

Argument PatternsArgument(Values& values) {
  return {.name = "PATTERN",
          .target = &values.patterns,
          .help =
              "Keys to select: NAME selects all keys below it, * matches one element, ** any "
              "number of elements, ? one character, [a-c] a set; !PATTERN excludes"};
}

Argument WhereArgument(std::string& where) {
  return {.name = "--where",
          .target = &where,
          .help = std::string(StatisticsFilter::kHelp),
          .value_name = "CONDITION"};
}

Verb OverviewVerb(Values& values) {
  return {.name = "overview",
          .usage = "STORE",
          .summary = "Summary of a store; the verb itself may be omitted",
          .arguments = {JsonFlag(values), StoreArgument(values)},
          .examples = {"kv-dump runs/gpt", "kv-dump runs/gpt --json | jq .latest.logical_bytes"},
          .run = [&](Output& out) { return DumpOverview({&out, values.json}, values.address); }};
}

Verb StepsVerb(Values& values) {
  return {.name = "steps",
          .usage = "steps STORE",
          .summary = "One row per step: time, size, new bytes, base",
          .arguments = {JsonFlag(values), StoreArgument(values), WhereArgument(values.where)},
          .examples = {"kv-dump steps runs/gpt", "kv-dump steps runs/gpt --where 'nan>0'"},
          .run = [&](Output& out) {
            return DumpSteps({&out, values.json}, values.address, values.where);
          }};
}

Verb KeysVerb(Values& values) {
  return {.name = "keys",
          .usage = "keys STORE[@STEP] [PATTERN...]",
          .summary = "One row per key: tensors and plain values",
          .arguments = {JsonFlag(values),
                        AddressArgument(values),
                        PatternsArgument(values),
                        {.name = "--statistics",
                         .target = &values.statistics,
                         .help = "Show what the save recorded about the values of tensors"},
                        WhereArgument(values.where)},
          .examples = {"kv-dump keys runs/gpt", "kv-dump keys runs/gpt@100 model.layers.0",
                       "kv-dump keys runs/gpt 'model.**.weight' '!**.attn'",
                       "kv-dump keys runs/gpt --where 'nan>0'"},
          .run = [&](Output& out) {
            return DumpKeys({&out, values.json}, values.address, values.patterns,
                            {.statistics = values.statistics, .where = values.where});
          }};
}

Verb ChunksVerb(Values& values) {
  return {.name = "chunks",
          .usage = "chunks STORE[@STEP] [PATTERN...]",
          .summary = "One row per chunk: box, digest, and where its bytes are stored",
          .arguments = {JsonFlag(values), AddressArgument(values), PatternsArgument(values)},
          .examples = {"kv-dump chunks runs/gpt@100 model.wte.weight"},
          .run = [&](Output& out) {
            return DumpChunks({&out, values.json}, values.address, values.patterns);
          }};
}

Verb ShowVerb(Values& values) {
  return {
      .name = "show",
      .usage = "show STORE[@STEP] FQN [--slice SLICE]",
      .summary = "Values and statistics of one key",
      .arguments = {JsonFlag(values),
                    AddressArgument(values),
                    {.name = "FQN", .target = &values.second, .help = "The key", .required = true},
                    {.name = "--slice",
                     .target = &values.show.slice,
                     .help = "Only this part, as Python writes it: 0:4,:,-1 or ...,0",
                     .value_name = "SLICE",
                     .value_may_start_with_dash = true},
                    {.name = "--all",
                     .target = &values.show.all,
                     .help = "Every value, not only the edges"}},
      .examples = {"kv-dump show runs/gpt model.wte.weight",
                   "kv-dump show runs/gpt@100 model.wte.weight --slice 0:4,-8:",
                   "kv-dump show runs/gpt train.step"},
      .run = [&](Output& out) {
        return DumpShow({&out, values.json}, values.address, values.second, values.show);
      }};
}

Verb DiffVerb(Values& values) {
  return {
      .name = "diff",
      .usage = "diff STORE@A STORE@B [PATTERN...]",
      .summary = "Keys and bytes that differ between two steps; status 1 if any differ",
      .arguments = {JsonFlag(values),
                    {.name = "STORE@A",
                     .target = &values.address,
                     .help = "The older step",
                     .required = true},
                    {.name = "STORE@B",
                     .target = &values.second,
                     .help = "The newer step; @B for the same store",
                     .required = true},
                    PatternsArgument(values),
                    {.name = "--values",
                     .target = &values.compare_values,
                     .help = "Read changed tensors and report by how much their values differ"}},
      .examples = {"kv-dump diff runs/gpt@100 @200",
                   "kv-dump diff runs/gpt@100 runs/gpt@200 model --values"},
      .run = [&](Output& out) {
        return DumpDiff({&out, values.json}, values.address, values.second, values.patterns,
                        values.compare_values);
      }};
}

Verb HistoryVerb(Values& values) {
  return {
      .name = "history",
      .usage = "history STORE FQN",
      .summary = "The steps at which a key's bytes changed",
      .arguments = {JsonFlag(values),
                    StoreArgument(values),
                    {.name = "FQN", .target = &values.second, .help = "The key", .required = true}},
      .examples = {"kv-dump history runs/gpt model.wte.weight",
                   "kv-dump history runs/gpt train.lr"},
      .run = [&](Output& out) {
        return DumpHistory({&out, values.json}, values.address, values.second);
      }};
}

Verb SegmentsVerb(Values& values) {
  return {.name = "segments",
          .usage = "segments STORE",
          .summary = "One row per segment file",
          .arguments = {JsonFlag(values), StoreArgument(values)},
          .examples = {"kv-dump segments runs/gpt"},
          .run = [&](Output& out) { return DumpSegments({&out, values.json}, values.address); }};
}

Verb SpaceVerb(Values& values) {
  return {.name = "space",
          .usage = "space STORE[@STEP] [PATTERN...] [--depth N]",
          .summary = "Where the bytes of a step are, by parts of the state",
          .arguments = {JsonFlag(values),
                        AddressArgument(values),
                        PatternsArgument(values),
                        {.name = "--depth",
                         .target = &values.depth,
                         .help = "Elements of the keys that rows have in common (2); 0: one row "
                                 "per tensor",
                         .value_name = "N"},
                        {.name = "--segments",
                         .target = &values.segments,
                         .help = "Instead, the bytes of each segment that steps use (live), that "
                                 "several steps use (shared), that none uses (dead), and that are "
                                 "headers, digests and gaps (overhead)"}},
          .examples = {"kv-dump space runs/gpt", "kv-dump space runs/gpt@100 optimizer --depth 3",
                       "kv-dump space runs/gpt --segments"},
          .run = [&](Output& out) {
            if (values.segments) return DumpSegmentSpace({&out, values.json}, values.address);
            return DumpSpace({&out, values.json}, values.address, values.patterns, values.depth);
          }};
}

Verb VerifyVerb(Values& values) {
  return {.name = "verify",
          .usage = "verify STORE[@STEP]",
          .summary = "Reads every byte and checks every digest; status 1 if damaged",
          .arguments = {JsonFlag(values),
                        AddressArgument(values),
                        {.name = "--max-rate",
                         .target = &values.max_rate,
                         .help = "Read at most this much per second, such as 50M, while the store "
                                 "is in use; what is deleted in this time is not reported",
                         .value_name = "BYTES"}},
          .examples = {"kv-dump verify runs/gpt", "kv-dump verify runs/gpt@100 --json",
                       "kv-dump verify runs/gpt --max-rate 50M"},
          .run = [&](Output& out) {
            return DumpVerify({&out, values.json}, values.address, values.max_rate);
          }};
}

Verb ReportVerb(Values& values) {
  return {.name = "report",
          .usage = "report STORE -o FILE",
          .summary = "Writes one self-contained HTML page: bytes, steps, changes, values, health",
          .arguments = {JsonFlag(values),
                        {.name = "STORE",
                         .target = &values.report.store,
                         .help = "Directory of the store",
                         .required = true},
                        {.name = "-o,--output",
                         .target = &values.report.file,
                         .help = "The page; an existing file is replaced",
                         .value_name = "FILE"},
                        {.name = "--all-steps",
                         .target = &values.report.all_steps,
                         .help = "Examine the records of every step; otherwise, evenly chosen "
                                 "steps of a store with more than 4 million records"}},
          .examples = {"kv-dump report runs/gpt -o report.html",
                       "kv-dump report runs/gpt --json | jq '.findings[].title'"},
          .notes = "Reads no payload. The page needs no network access.",
          .run = [&](Output& out) { return DumpReport({&out, values.json}, values.report); }};
}

Verb ServeVerb(Values& values) {
  return {.name = "serve",
          .usage = "serve STORE [--port N]",
          .summary = "The same page live: follows a running job, with search, values and diffs",
          .arguments = {JsonFlag(values),
                        {.name = "STORE",
                         .target = &values.serve.store,
                         .help = "Directory of the store",
                         .required = true},
                        {.name = "--port",
                         .target = &values.serve.port,
                         .help = "The port; 0: any that is free. Otherwise 7707, or any that is "
                                 "free if 7707 is in use",
                         .value_name = "N",
                         .range = ArgumentRange(std::pair<uint64_t, uint64_t>(0, 65535))},
                        {.name = "--address",
                         .target = &values.serve.address,
                         .help = "The IPv4 address to listen on, 127.0.0.1 if it is not given. "
                                 "With 0.0.0.0, everybody on the network can read the store",
                         .value_name = "ADDRESS"},
                        {.name = "--allow-host",
                         .target = &values.serve.hosts,
                         .help = "Also accept requests for this host name, as from a proxy; '*': "
                                 "for any name",
                         .value_name = "NAME"},
                        {.name = "--all-steps",
                         .target = &values.serve.all_steps,
                         .help = "Examine the records of every step, as for report"}},
          .examples = {"kv-dump serve runs/gpt", "kv-dump serve s3://bucket/runs/gpt --port 0"},
          .notes = "Read-only. Listens only on this machine unless --address states otherwise.",
          .run = [&](Output& out) { return DumpServe({&out, values.json}, values.serve); }};
}

CommandLine MakeCommandLine(Values& values) {
  return {.name = "kv-dump",
          .version = CAIRN_VERSION,
          .summary = "Reads a Cairn store; never changes anything.",
          .usage = "kv-dump STORE\n       kv-dump VERB STORE[@STEP] ...",
          .arguments = {JsonFlag(values)},
          .verbs = {OverviewVerb(values), StepsVerb(values), KeysVerb(values), ChunksVerb(values),
                    ShowVerb(values), DiffVerb(values), HistoryVerb(values), SegmentsVerb(values),
                    SpaceVerb(values), VerifyVerb(values), ReportVerb(values), ServeVerb(values)},
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
  cairn::tools::Values values;
  return cairn::tools::RunProgram(cairn::tools::MakeCommandLine(values), argc, argv);
}
