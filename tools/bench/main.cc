// kv-bench: measures saves, loads, opening and digests in a directory of the user's choice.

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "tools/bench/verbs.h"
#include "tools/common/exit_status.h"
#include "tools/common/program.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

/// The user's arguments. Each verb reads its part.
struct Values {
  BenchOptions options;
  std::string bytes = "1GiB";
  bool json = false;
  std::string child_path;
};

using Measure = Result<void> (*)(const BenchOptions&, BenchReport&);

/// Returns the options with the size parsed. kNotFound: --dir is not a directory.
Result<BenchOptions> CheckedOptions(const Values& values) {
  BenchOptions options = values.options;
  CAIRN_TRY_ASSIGN(options.bytes, ParseBytes(values.bytes));
  std::error_code error;
  if (!std::filesystem::is_directory(options.directory, error)) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "--dir must be a directory that exists; run mkdir -p " +
                                 ShellWord(options.directory),
                      .file = options.directory});
  }
  return options;
}

std::function<Result<int>(Output&)> Run(const Values& values, Measure measure) {
  return [&values, measure](Output& out) -> Result<int> {
    CAIRN_TRY_ASSIGN(const BenchOptions options, CheckedOptions(values));
    BenchReport report(&out, values.json);
    return StatusOf(measure(options, report));
  };
}

std::string Usage(const std::string& verb, const std::string& options) {
  return fmt::format("{} --dir DIR {}", verb, options);
}

/// The arguments that all verbs have, followed by the arguments of one verb.
std::vector<Argument> CommonArguments(Values& values, std::vector<Argument> more) {
  std::vector<Argument> arguments = {
      {.name = "--dir",
       .target = &values.options.directory,
       .help = "Directory to work in; files that are created there are removed",
       .value_name = "DIR",
       .required = true},
      {.name = "--json", .target = &values.json, .help = "One JSON object per run, one per line"}};
  for (Argument& argument : more) arguments.push_back(std::move(argument));
  return arguments;
}

/// CommonArguments of a verb that repeats its measurement.
std::vector<Argument> RepeatedArguments(Values& values, std::vector<Argument> more) {
  more.insert(more.begin(), {.name = "--repeat",
                             .target = &values.options.repeat,
                             .help = "Number of runs",
                             .value_name = "N",
                             .range = std::pair{uint64_t{1}, uint64_t{1000}}});
  return CommonArguments(values, std::move(more));
}

Argument BytesOption(Values& values) {
  return {.name = "--bytes",
          .target = &values.bytes,
          .help = "Size of all tensors (1GiB): 4GiB, 512M, ...",
          .value_name = "SIZE"};
}

Argument FioFlag(Values& values, const std::string& mode) {
  return {.name = "--fio",
          .target = &values.options.fio,
          .help = fmt::format("After each run, fio with the same bytes ({}), and the ratio", mode)};
}

Argument RanksOption(Values& values) {
  return {.name = "--ranks",
          .target = &values.options.ranks,
          .help = "Ranks of the simulated job (16384)",
          .value_name = "N",
          .range = std::pair{uint64_t{2}, uint64_t{1} << 20}};
}

Argument ChunksOption(Values& values, const std::string& help) {
  return {.name = "--chunks",
          .target = &values.options.chunks,
          .help = help,
          .value_name = "N",
          .range = std::pair{uint64_t{1}, uint64_t{100'000'000}}};
}

Argument StepsOption(Values& values, const std::string& help) {
  return {.name = "--steps",
          .target = &values.options.steps,
          .help = help,
          .value_name = "N",
          .range = std::pair{uint64_t{1}, uint64_t{1'000'000}}};
}

Argument WarmFlag(Values& values) {
  return {.name = "--warm",
          .target = &values.options.warm,
          .help = "Only with the files in the page cache"};
}

Verb SaveVerb(Values& values) {
  return {
      .name = "save",
      .usage = Usage("save", "[--bytes SIZE] [--fio] [--repeat N] [--json]"),
      .summary = "A full durable save of a model in training, into a new store",
      .arguments = RepeatedArguments(
          values, {BytesOption(values), FioFlag(values, "sequential O_DIRECT write, end_fsync")}),
      .examples = {"kv-bench save --dir /data --bytes 4GiB --fio --repeat 5"},
      .run = Run(values, BenchSave)};
}

Verb LoadVerb(Values& values) {
  return {.name = "load",
          .usage = Usage("load", "[--bytes SIZE] [--warm] [--fio] [--repeat N] [--json]"),
          .summary = "A load of everything, with cold caches, into existing memory",
          .arguments = RepeatedArguments(values, {BytesOption(values),
                                                  {.name = "--warm",
                                                   .target = &values.options.warm,
                                                   .help = "Leave the page cache as it is"},
                                                  FioFlag(values, "sequential O_DIRECT read")}),
          .examples = {"kv-bench load --dir /data --bytes 4GiB --fio --repeat 5"},
          .run = Run(values, BenchLoad)};
}

Verb PartialVerb(Values& values) {
  return {.name = "partial",
          .usage = Usage("partial", "[--bytes SIZE] [--repeat N] [--json]"),
          .summary = "A cold load of one key in a hundred, and the bytes that it read",
          .arguments = RepeatedArguments(values, {BytesOption(values)}),
          .examples = {"kv-bench partial --dir /data --bytes 4GiB --repeat 10"},
          .run = Run(values, BenchPartial)};
}

Verb IncrementalVerb(Values& values) {
  return {
      .name = "incremental",
      .usage =
          Usage("incremental", "[--bytes SIZE] [--tensors N] [--changed P] [--repeat N] [--json]"),
      .summary =
          "A second save, and what it added to the disk, including records; compared with\n"
          "two threads that sum the bytes",
      .arguments = RepeatedArguments(
          values, {BytesOption(values),
                   {.name = "--tensors",
                    .target = &values.options.tensors,
                    .help = "Instead of a model: so many tensors of equal size",
                    .value_name = "N",
                    .range = std::pair{uint64_t{1}, uint64_t{10'000'000}}},
                   {.name = "--changed",
                    .target = &values.options.changed_percent,
                    .help = "Besides the save with nothing changed, one with P % of the tensors "
                            "changed",
                    .value_name = "P",
                    .range = std::pair{0.0, 100.0}}}),
      .examples = {"kv-bench incremental --dir /data --bytes 4GiB --changed 10",
                   "kv-bench incremental --dir /data --bytes 2GiB --tensors 20000 --repeat 5"},
      .run = Run(values, BenchIncremental)};
}

Verb OpenVerb(Values& values) {
  return {.name = "open",
          .usage = Usage("open", "[--chunks N] [--steps N] [--warm] [--repeat N] [--json]"),
          .summary =
              "Opening a store of many chunks and reading a first key, in a new process,\n"
              "compared with RocksDB opening and seeking the table alone",
          .arguments = RepeatedArguments(
              values, {ChunksOption(values,
                                    "Chunks in the store (1000000), which is kept as "
                                    "DIR/open-N for later runs"),
                       StepsOption(values,
                                   "Also a store with so many steps before, kept as "
                                   "DIR/open-N-STEPS"),
                       WarmFlag(values)}),
          .examples = {"kv-bench open --dir /data --steps 10000 --repeat 9"},
          .run = Run(values, BenchOpen)};
}

Verb CommitVerb(Values& values) {
  return {.name = "commit",
          .usage = Usage("commit", "[--ranks N] [--chunks N] [--repeat N] [--json]"),
          .summary =
              "What rank 0 does for a step of many ranks: reads their parts, checks that\n"
              "they form complete tensors, commits. The parts of the ranks are written before,\n"
              "durably. Compared with RocksDB writing the table alone",
          .arguments = RepeatedArguments(
              values, {RanksOption(values), ChunksOption(values, "Chunks of all ranks (1000000)")}),
          .examples = {"kv-bench commit --dir /data --ranks 16384 --chunks 1000000"},
          .run = Run(values, BenchCommit)};
}

Verb DigestVerb(Values& values) {
  return {.name = "digest",
          .usage = Usage("digest", "[--bytes SIZE] [--repeat N] [--json]"),
          .summary = "The digest of memory, compared with a plain read and a copy of it",
          .arguments = RepeatedArguments(values, {BytesOption(values)}),
          .examples = {"kv-bench digest --dir /tmp --bytes 1GiB"},
          .run = Run(values, BenchDigest)};
}

Verb GpuVerb(Values& values) {
  return {.name = "gpu",
          .usage = Usage("gpu",
                         "[--bytes SIZE] [--part PART] [--device N] [--fio] [--repeat N] [--json]"),
          .summary =
              "A GPU: copies, digests, durable saves and cold loads, incremental saves and\n"
              "the stall of asynchronous ones, each compared with its limit",
          .arguments = RepeatedArguments(
              values, {BytesOption(values),
                       {.name = "--part",
                        .target = &values.options.part,
                        .help = "Only this: copies, digest, disk, pages or stall",
                        .value_name = "PART",
                        .choices = {"copies", "digest", "disk", "pages", "stall"}},
                       {.name = "--device",
                        .target = &values.options.device,
                        .help = "Number of the GPU (0)",
                        .value_name = "N"},
                       FioFlag(values, "O_DIRECT write with end_fsync, and read")}),
          .examples = {"kv-bench gpu --dir /data --bytes 4GiB --fio --repeat 5"},
          .run = Run(values, BenchGpu)};
}

/// Only for BenchOpen, which runs this verb in a new process.
Verb ChildVerb(Values& values, const std::string& name,
               Result<void> (*measure)(const std::string&, Output&)) {
  return {
      .name = name,
      .usage = name + " PATH",
      .arguments = {{.name = "path", .target = &values.child_path, .required = true}},
      .hidden = true,
      .run = [&values, measure](Output& out) { return StatusOf(measure(values.child_path, out)); }};
}

CommandLine MakeCommandLine(Values& values) {
  return {
      .name = "kv-bench",
      .version = CAIRN_VERSION,
      .summary = "Measures Cairn on the disk of this machine, compared with the disk itself.",
      .usage = "kv-bench VERB --dir DIR ...",
      .verbs = {SaveVerb(values), LoadVerb(values), PartialVerb(values), IncrementalVerb(values),
                OpenVerb(values), CommitVerb(values), DigestVerb(values), GpuVerb(values),
                ChildVerb(values, "open-child", BenchOpenChild),
                ChildVerb(values, "table-child", BenchTableChild)},
      .notes = "`kv-bench VERB --help` lists the options of a verb, with an example."};
}

}  // namespace
}  // namespace cairn::tools

int main(int argc, char** argv) {
  cairn::tools::InstallCancelHandler();
  cairn::tools::Values values;
  return cairn::tools::RunProgram(cairn::tools::MakeCommandLine(values), argc, argv);
}
