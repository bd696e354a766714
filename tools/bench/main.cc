// kv-bench: measures saves, loads, opening and digests on a directory of the user's choice.

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "tools/bench/verbs.h"
#include "tools/common/program.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"

namespace cairn::tools::internal {
namespace {

struct Arguments {
  BenchOptions options;
  std::string bytes = "1GiB";
  bool json = false;
  std::string child_store;
};

CLI::App* AddVerb(CLI::App& app, Arguments& arguments, const std::string& name,
                  const std::string& options, const std::string& what) {
  CLI::App* verb = app.add_subcommand(name, what)->group("Verbs");
  StyleHelp(*verb, fmt::format("kv-bench {} --dir DIR {}", name, options));
  verb->add_option("--dir", arguments.options.directory,
                   "Where to work; what is made there is removed again")
      ->required()
      ->type_name("DIR");
  verb->add_flag("--json", arguments.json, "One JSON object a run, one a line");
  verb->add_option("--repeat", arguments.options.repeat, "Runs")
      ->type_name("N")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1000}));
  return verb;
}

void AddBytes(CLI::App* verb, Arguments& arguments) {
  verb->add_option("--bytes", arguments.bytes, "Size of all tensors (1GiB): 4GiB, 512M, ...")
      ->type_name("SIZE");
}

void AddFio(CLI::App* verb, Arguments& arguments, const std::string& what) {
  verb->add_flag("--fio", arguments.options.fio,
                 fmt::format("After each run the same bytes by fio ({}), and the ratio", what));
}

void AddRanks(CLI::App* verb, Arguments& arguments) {
  verb->add_option("--ranks", arguments.options.ranks, "Ranks of the simulated job (16384)")
      ->type_name("N")
      ->check(CLI::Range(uint64_t{2}, uint64_t{1} << 20));
}

void AddWholeVerbs(CLI::App& app, Arguments& arguments) {
  BenchOptions& options = arguments.options;
  CLI::App* verb = AddVerb(app, arguments, "save", "[--bytes SIZE] [--fio] [--repeat N] [--json]",
                           "A full durable save of a model in training, into a new store");
  AddBytes(verb, arguments);
  AddFio(verb, arguments, "sequential O_DIRECT write, end_fsync");
  SetExamples(*verb, {"kv-bench save --dir /data --bytes 4GiB --fio --repeat 5"});

  verb = AddVerb(app, arguments, "load", "[--bytes SIZE] [--warm] [--fio] [--repeat N] [--json]",
                 "A load of everything, with cold caches, into memory that is already there");
  AddBytes(verb, arguments);
  verb->add_flag("--warm", options.warm, "Leave the page cache as it is");
  AddFio(verb, arguments, "sequential O_DIRECT read");
  SetExamples(*verb, {"kv-bench load --dir /data --bytes 4GiB --fio --repeat 5"});
}

void AddPartVerbs(CLI::App& app, Arguments& arguments) {
  BenchOptions& options = arguments.options;
  CLI::App* verb = AddVerb(app, arguments, "partial", "[--bytes SIZE] [--repeat N] [--json]",
                           "A cold load of one key in a hundred, and what it read for them");
  AddBytes(verb, arguments);
  SetExamples(*verb, {"kv-bench partial --dir /data --bytes 4GiB --repeat 10"});

  verb =
      AddVerb(app, arguments, "incremental", "[--bytes SIZE] [--changed P] [--repeat N] [--json]",
              "A second save, and what it put on disk with records and all");
  AddBytes(verb, arguments);
  verb->add_option("--changed", options.changed_percent,
                   "Besides the save with nothing changed, one with P % of the tensors changed")
      ->type_name("P")
      ->check(CLI::Range(0.0, 100.0));
  SetExamples(*verb, {"kv-bench incremental --dir /data --bytes 4GiB --changed 10"});
}

void AddGpuVerb(CLI::App& app, Arguments& arguments) {
  CLI::App* verb =
      AddVerb(app, arguments, "gpu",
              "[--bytes SIZE] [--part PART] [--device N] [--fio] [--repeat N] [--json]",
              "A GPU: copies, digests, durable saves and cold loads, incremental saves\n"
              "and the stall of asynchronous ones, each beside its limit");
  AddBytes(verb, arguments);
  verb->add_option("--part", arguments.options.part,
                   "Only this: copies, digest, disk, pages or stall")
      ->type_name("PART")
      ->check(CLI::IsMember({"copies", "digest", "disk", "pages", "stall"}));
  verb->add_option("--device", arguments.options.device, "Number of the GPU (0)")->type_name("N");
  AddFio(verb, arguments, "O_DIRECT write with end_fsync, and read");
  SetExamples(*verb, {"kv-bench gpu --dir /data --bytes 4GiB --fio --repeat 5"});
}

void AddOtherVerbs(CLI::App& app, Arguments& arguments) {
  CLI::App* verb =
      AddVerb(app, arguments, "open", "[--chunks N] [--warm] [--repeat N] [--json]",
              "Opening a store of many chunks and reading a first key, in a fresh process");
  verb->add_option("--chunks", arguments.options.chunks,
                   "Chunks in the store (1000000), which is kept as DIR/open-N for further runs")
      ->type_name("N")
      ->check(CLI::Range(uint64_t{1}, uint64_t{100'000'000}));
  verb->add_flag("--warm", arguments.options.warm, "Only with the files in the page cache");
  SetExamples(*verb, {"kv-bench open --dir /data --repeat 5"});

  verb =
      AddVerb(app, arguments, "commit", "[--ranks N] [--chunks N] [--repeat N] [--json]",
              "What rank 0 does for a step of many ranks: takes up their manifests, checks that\n"
              "they make whole tensors, commits. The ranks' parts are written before, durably");
  AddRanks(verb, arguments);
  verb->add_option("--chunks", arguments.options.chunks, "Chunks of all ranks (1000000)")
      ->type_name("N")
      ->check(CLI::Range(uint64_t{1}, uint64_t{100'000'000}));
  SetExamples(*verb, {"kv-bench commit --dir /data --ranks 16384 --chunks 1000000"});

  verb = AddVerb(app, arguments, "plan", "[--ranks N] [--repeat N] [--json]",
                 "One rank's part of a model of 2,000 tensors on a mesh of three dimensions");
  AddRanks(verb, arguments);
  SetExamples(*verb, {"kv-bench plan --dir /tmp --ranks 16384 --repeat 5"});

  verb = AddVerb(app, arguments, "digest", "[--bytes SIZE] [--repeat N] [--json]",
                 "The digest of memory, against a plain read and a copy of it");
  AddBytes(verb, arguments);
  SetExamples(*verb, {"kv-bench digest --dir /tmp --bytes 1GiB"});

  AddGpuVerb(app, arguments);

  verb =
      AddVerb(app, arguments, "tune", "[--bytes SIZE] [--json]",
              "Sweeps block size, depth, engine and O_DIRECT over durable saves and cold loads,\n"
              "and says what suits this disk best and how to set it; 1GiB takes a minute or two");
  verb->remove_option(verb->get_option("--repeat"));  // the search decides that
  AddBytes(verb, arguments);
  SetExamples(*verb, {"kv-bench tune --dir /data"});
  verb->footer(verb->get_footer() +
               "\n\n"
               "How to set what it found, for Python and the programs (unset: the defaults):\n"
               "  CAIRN_IO_BLOCK_BYTES   bytes of one request\n"
               "  CAIRN_IO_DEPTH         requests in flight; their product is the memory it takes\n"
               "  CAIRN_IO_ENGINE        uring or threads\n"
               "  CAIRN_IO_DIRECT        1: O_DIRECT, 0: through the page cache\n"
               "In C++: kv::StoreOptions::io.");

  // Only for BenchOpen, which runs it as a process of its own.
  verb = app.add_subcommand("open-child")->group("");
  verb->add_option("store", arguments.child_store)->required();
}

Result<void> RunVerb(const std::string& verb, const Arguments& arguments, Output& out) {
  if (verb == "open-child") return BenchOpenChild(arguments.child_store, out);
  BenchOptions options = arguments.options;
  CAIRN_TRY_ASSIGN(options.bytes, ParseBytes(arguments.bytes));
  std::error_code error;
  if (!std::filesystem::is_directory(options.directory, error)) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .message = "--dir must be a directory that exists",
                      .file = options.directory});
  }
  if (verb == "tune") return BenchTune(options, arguments.json, out);
  BenchReport report(&out, arguments.json);
  if (verb == "save") return BenchSave(options, report);
  if (verb == "load") return BenchLoad(options, report);
  if (verb == "partial") return BenchPartial(options, report);
  if (verb == "incremental") return BenchIncremental(options, report);
  if (verb == "open") return BenchOpen(options, report);
  if (verb == "commit") return BenchCommit(options, report);
  if (verb == "plan") return BenchPlan(options, report);
  if (verb == "gpu") return BenchGpu(options, report);
  return BenchDigest(options, report);
}

Result<int> Main(int argc, char** argv) {
  CLI::App app("Measures Cairn on this machine's disk, beside the disk itself.", "kv-bench");
  StyleProgram(app, "kv-bench VERB --dir DIR ...", CAIRN_VERSION);
  Arguments arguments;
  AddWholeVerbs(app, arguments);
  AddPartVerbs(app, arguments);
  AddOtherVerbs(app, arguments);
  app.footer("`kv-bench VERB --help` has the options of a verb and an example.");
  CAIRN_TRY_ASSIGN(const bool go_on, ParseCommandLine(app, JoinValues(argc, argv, {})));
  if (!go_on) return kExitFine;
  InstallCancelHandler();
  Output out;
  CAIRN_TRY(RunVerb(app.get_subcommands().front()->get_name(), arguments, out));
  CAIRN_TRY(out.Finish());
  return kExitFine;
}

}  // namespace
}  // namespace cairn::tools::internal

int main(int argc, char** argv) {
  return cairn::tools::internal::RunProgram(
      "kv-bench", [&] { return cairn::tools::internal::Main(argc, argv); });
}
