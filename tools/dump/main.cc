// kv-dump: looks into a store and never changes anything.

#include <array>
#include <csignal>
#include <string>
#include <vector>

#include "tools/dump/verbs.h"
#include "tools/common/program.h"

namespace cairn::tools::internal {
namespace {

constexpr std::array<std::string_view, 8> kVerbs = {"overview", "steps", "keys",     "chunks",
                                                    "show",     "diff",  "segments", "verify"};
constexpr std::array<std::string_view, 1> kJoinedOptions = {"--slice"};

/// What the command line said; each verb reads its part.
struct Arguments {
  bool json = false;
  std::string address;
  std::string second;  // the other step of diff, the FQN of show
  std::vector<std::string> patterns;
  bool values = false;
  ShowOptions show;
};

constexpr std::string_view kAddressHelp = "STORE or STORE@STEP; without @STEP the latest";
constexpr std::string_view kPatternHelp =
    "keys to take: NAME takes all below it, * one element, ** any, ? one character, [a-c] a set, "
    "!PATTERN excludes";

CLI::App* AddVerb(CLI::App& app, Arguments& arguments, const std::string& name,
                  const std::string& usage, const std::string& what) {
  CLI::App* verb = app.add_subcommand(name, what)->group("Verbs");
  StyleHelp(*verb, "kv-dump " + usage);
  verb->add_flag("--json", arguments.json, "One JSON document with exact bytes");
  return verb;
}

void AddAddress(CLI::App* verb, Arguments& arguments, bool with_step) {
  const std::string help = with_step ? std::string(kAddressHelp) : "Directory of the store";
  verb->add_option(with_step ? "STORE[@STEP]" : "STORE", arguments.address, help)
      ->required()
      ->type_name("");
}

void AddPatterns(CLI::App* verb, Arguments& arguments) {
  verb->add_option("PATTERN", arguments.patterns, std::string(kPatternHelp))->type_name("");
}

void AddStoreVerbs(CLI::App& app, Arguments& arguments) {
  CLI::App* verb = AddVerb(app, arguments, "overview", "STORE",
                           "What is in a store; the verb itself may be left out");
  AddAddress(verb, arguments, false);
  SetExamples(*verb, {"kv-dump runs/gpt", "kv-dump runs/gpt --json | jq .latest.logical_bytes"});

  verb = AddVerb(app, arguments, "steps", "steps STORE",
                 "A row a step: when, how large, what it wrote, its base");
  AddAddress(verb, arguments, false);
  SetExamples(*verb, {"kv-dump steps runs/gpt"});
}

void AddStepVerbs(CLI::App& app, Arguments& arguments) {
  CLI::App* verb = AddVerb(app, arguments, "keys", "keys STORE[@STEP] [PATTERN...]",
                           "A row a key: tensors and plain values");
  AddAddress(verb, arguments, true);
  AddPatterns(verb, arguments);
  SetExamples(*verb, {"kv-dump keys runs/gpt", "kv-dump keys runs/gpt@100 model.layers.0",
                      "kv-dump keys runs/gpt 'model.**.weight' '!**.attn'"});

  verb = AddVerb(app, arguments, "chunks", "chunks STORE[@STEP] [PATTERN...]",
                 "A row a chunk: its box, digest and where its bytes lie");
  AddAddress(verb, arguments, true);
  AddPatterns(verb, arguments);
  SetExamples(*verb, {"kv-dump chunks runs/gpt@100 model.wte.weight"});

  verb = AddVerb(app, arguments, "show", "show STORE[@STEP] FQN [--slice SLICE]",
                 "Values and statistics of one key");
  AddAddress(verb, arguments, true);
  verb->add_option("FQN", arguments.second, "The key")->required()->type_name("");
  verb->add_option("--slice", arguments.show.slice,
                   "Only this part, as Python writes it: 0:4,:,-1 or ...,0")
      ->type_name("SLICE");
  verb->add_flag("--all", arguments.show.all, "Every value, not just the edges");
  SetExamples(*verb, {"kv-dump show runs/gpt model.wte.weight",
                      "kv-dump show runs/gpt@100 model.wte.weight --slice 0:4,-8:",
                      "kv-dump show runs/gpt train.step"});

  verb = AddVerb(app, arguments, "diff", "diff STORE@A STORE@B [PATTERN...]",
                 "Keys and bytes that differ between two steps; status 1 if any");
  verb->add_option("STORE@A", arguments.address, "The older step")->required()->type_name("");
  verb->add_option("STORE@B", arguments.second, "The newer step; @B for the same store")
      ->required()
      ->type_name("");
  AddPatterns(verb, arguments);
  verb->add_flag("--values", arguments.values,
                 "Read changed tensors and say by how much their values differ");
  SetExamples(*verb, {"kv-dump diff runs/gpt@100 @200",
                      "kv-dump diff runs/gpt@100 runs/gpt@200 model --values"});
}

void AddFileVerbs(CLI::App& app, Arguments& arguments) {
  CLI::App* verb = AddVerb(app, arguments, "segments", "segments STORE", "A row a segment file");
  AddAddress(verb, arguments, false);
  SetExamples(*verb, {"kv-dump segments runs/gpt"});

  verb = AddVerb(app, arguments, "verify", "verify STORE[@STEP]",
                 "Reads every byte, checks every digest; status 1 if damaged");
  AddAddress(verb, arguments, true);
  SetExamples(*verb, {"kv-dump verify runs/gpt", "kv-dump verify runs/gpt@100 --json"});
}

Result<int> RunVerb(const std::string& verb, const DumpRun& run, const Arguments& arguments) {
  if (verb == "overview") return DumpOverview(run, arguments.address);
  if (verb == "steps") return DumpSteps(run, arguments.address);
  if (verb == "keys") return DumpKeys(run, arguments.address, arguments.patterns);
  if (verb == "chunks") return DumpChunks(run, arguments.address, arguments.patterns);
  if (verb == "show") return DumpShow(run, arguments.address, arguments.second, arguments.show);
  if (verb == "diff") {
    return DumpDiff(run, arguments.address, arguments.second, arguments.patterns, arguments.values);
  }
  if (verb == "segments") return DumpSegments(run, arguments.address);
  return DumpVerify(run, arguments.address);
}

Result<int> Main(int argc, char** argv) {
  CLI::App app("Looks into a Cairn store; never changes anything.", "kv-dump");
  StyleProgram(app, "kv-dump STORE\n       kv-dump VERB STORE[@STEP] ...", CAIRN_VERSION);
  Arguments arguments;
  app.add_flag("--json", arguments.json, "One JSON document with exact bytes");
  AddStoreVerbs(app, arguments);
  AddStepVerbs(app, arguments);
  AddFileVerbs(app, arguments);
  app.footer(
      "`kv-dump VERB --help` has the options of a verb and examples.\n"
      "Exit status: 0 fine; 1 differs or damaged (diff, verify); 2 it could not be done.");

  std::vector<std::string> words = JoinValues(argc, argv, kJoinedOptions);
  CAIRN_TRY(InsertDefaultVerb(words, kVerbs, "overview"));
  CAIRN_TRY_ASSIGN(const bool go_on, ParseCommandLine(app, std::move(words)));
  if (!go_on) return kExitFine;
  Output out;
  const DumpRun run{.out = &out, .json = arguments.json};
  CAIRN_TRY_ASSIGN(const int status,
                   RunVerb(app.get_subcommands().front()->get_name(), run, arguments));
  CAIRN_TRY(out.Finish());
  return status;
}

}  // namespace
}  // namespace cairn::tools::internal

int main(int argc, char** argv) {
  // `kv-dump keys STORE | head` ends quietly, as cat does, whatever the parent ignored.
  std::signal(SIGPIPE, SIG_DFL);
  return cairn::tools::internal::RunProgram(
      "kv-dump", [&] { return cairn::tools::internal::Main(argc, argv); });
}
