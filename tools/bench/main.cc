// kv-bench: measures Cairn in a directory of the user's choice.

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "tools/bench/verbs.h"
#include "tools/common/command_line.h"
#include "tools/common/exit_status.h"
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

/// Returns the options with the size parsed. kInvalidArgument: --dir is not a directory.
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

/// Completes a verb that has its summary, its example and its own arguments. `usage` lists these
/// arguments.
Verb Measuring(Values& values, const char* name, const char* usage, Measure measure, Verb verb) {
  verb.name = name;
  verb.usage = fmt::format("{} --dir DIR {} [--repeat N] [--json]", name, usage);
  verb.run = [&values, measure, name](Output& out) -> Result<int> {
    CAIRN_TRY_ASSIGN(const BenchOptions options, CheckedOptions(values));
    BenchReport report(&out, values.json, name);
    return StatusOf(measure(options, report));
  };
  std::vector<Argument> arguments = {
      RequiredOption("--dir", "DIR", &values.options.directory,
                     "Directory to work in; files that are created there are removed"),
      Flag("--json", values.json, "One JSON object per run, one per line"),
      Option("--repeat", "N", &values.options.repeat, "Number of runs",
             std::pair{uint64_t{1}, uint64_t{1000}})};
  for (Argument& argument : verb.arguments) arguments.push_back(std::move(argument));
  verb.arguments = std::move(arguments);
  return verb;
}

Argument CountOption(uint64_t& target, const char* name, const char* help, uint64_t least,
                     uint64_t most) {
  return Option(name, "N", &target, help, std::pair{least, most});
}

Argument BytesOption(Values& values) {
  return Option("--bytes", "SIZE", &values.bytes, "Size of all tensors (1GiB): 4GiB, 512M, ...");
}

/// A verb that measures one operation on a model.
Verb ModelVerb(Values& values, const char* name, Measure measure, const char* summary) {
  return Measuring(values, name, "[--bytes SIZE]", measure,
                   {.summary = summary,
                    .arguments = {BytesOption(values)},
                    .examples = {fmt::format("kv-bench {} --dir /data --bytes 4GiB", name)}});
}

Verb OpenVerb(Values& values) {
  return Measuring(
      values, "open", "[--chunks N] [--steps N]", BenchOpen,
      {.summary = "Opening a store of many chunks and reading a first key, in a new process",
       .arguments = {CountOption(values.options.chunks, "--chunks",
                                 "Chunks in the store (1000000), which is kept as DIR/open-N for "
                                 "later runs",
                                 1, 100'000'000),
                     CountOption(values.options.steps, "--steps",
                                 "Also a store with so many steps before, kept as DIR/open-N-STEPS",
                                 1, 1'000'000)},
       .examples = {"kv-bench open --dir /data --steps 10000 --repeat 9"}});
}

Verb CommitVerb(Values& values) {
  return Measuring(
      values, "commit", "[--ranks N] [--chunks N]", BenchCommit,
      {.summary =
           "What rank 0 does for the step of a multi-rank store: reads their parts, checks that\n"
           "they form complete tensors, commits. The parts of the ranks are written before,\n"
           "durably. Compared with RocksDB writing the table alone",
       .arguments = {CountOption(values.options.ranks, "--ranks",
                                 "Ranks of the simulated job (16384)", 2, uint64_t{1} << 20),
                     CountOption(values.options.chunks, "--chunks", "Chunks of all ranks (1000000)",
                                 1, 100'000'000)},
       .examples = {"kv-bench commit --dir /data --ranks 16384 --chunks 1000000"}});
}

Verb GpuVerb(Values& values) {
  return Measuring(
      values, "gpu", "[--bytes SIZE] [--part PART] [--device N]", BenchGpu,
      {.summary = "A GPU: copies and digests, each compared with its limit",
       .arguments = {BytesOption(values),
                     {.name = "--part",
                      .target = &values.options.part,
                      .help = "Only this: copies or digest",
                      .value_name = "PART",
                      .choices = {"copies", "digest"}},
                     Option("--device", "N", &values.options.device, "Number of the GPU (0)")},
       .examples = {"kv-bench gpu --dir /data --bytes 4GiB --repeat 5"}});
}

/// Only for BenchOpen, which runs this verb in a new process.
Verb ChildVerb(Values& values) {
  return {
      .name = "open-child",
      .usage = "open-child PATH",
      .arguments = {{.name = "path", .target = &values.child_path, .required = true}},
      .hidden = true,
      .run = [&values](Output& out) { return StatusOf(BenchOpenChild(values.child_path, out)); }};
}

CommandLine MakeCommandLine(Values& values) {
  return {
      .name = "kv-bench",
      .version = CAIRN_VERSION,
      .summary = "Measures Cairn on the disk and the processors of this machine.",
      .usage = "kv-bench VERB --dir DIR ...",
      .verbs = {ModelVerb(values, "save", BenchSave, "A durable save of a model into a new store"),
                ModelVerb(values, "load", BenchLoad, "A load of a model from the disk"),
                ModelVerb(values, "partial", BenchPartial,
                          "A load of every 100th tensor of a model from the disk"),
                ModelVerb(values, "incremental", BenchIncremental,
                          "Durable saves of a model of which nothing and 1 % has changed"),
                OpenVerb(values), CommitVerb(values),
                ModelVerb(values, "digest", BenchDigest, "The page digests of a model in memory"),
                GpuVerb(values), ChildVerb(values)},
      .notes = "`kv-bench VERB --help` lists the options of a verb, with an example."};
}

}  // namespace
}  // namespace cairn::tools

int main(int argc, char** argv) {
  cairn::tools::InstallCancelHandler();
  cairn::tools::Values values;
  return cairn::tools::RunProgram(cairn::tools::MakeCommandLine(values), argc, argv);
}
