// kv-admin: brings checkpoints into a store, takes them out, deletes them, and mends an index.

#include <fmt/format.h>

#include <csignal>
#include <string>

#include "tools/admin/verbs.h"
#include "tools/common/program.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"

namespace cairn::tools::internal {
namespace {

struct Arguments {
  ImportOptions import;
  ExportOptions export_to;
  DeleteOptions delete_steps;
  std::string rebuild_store;
  std::string shard_size = "5GB";
};

CLI::App* AddVerb(CLI::App& app, const std::string& name, const std::string& usage,
                  const std::string& what) {
  CLI::App* verb = app.add_subcommand(name, what)->group("Verbs");
  StyleHelp(*verb, "kv-admin " + usage);
  return verb;
}

void AddImport(CLI::App& app, ImportOptions& options) {
  CLI::App* verb =
      AddVerb(app, "import", "import STORE --step N FILE...",
              "A new step from safetensors or torch.save files, or a torch.distributed.checkpoint");
  verb->add_option("STORE", options.store, "Directory of the store, made if absent")
      ->required()
      ->type_name("");
  verb->add_option("FILE", options.files,
                   "Safetensors or torch.save files, all shards of one checkpoint, or its "
                   "*.index.json; or a torch.distributed.checkpoint directory")
      ->required()
      ->type_name("");
  verb->add_option("--step", options.step, "Number of the new step")->required()->type_name("N");
  verb->add_option("--prefix", options.prefix,
                   "Put the tensors below this key: with \"model\", wte.weight becomes "
                   "model.wte.weight")
      ->type_name("KEY");
  verb->add_flag("--skip-unknown", options.skip_unknown,
                 "Leave out and list objects of classes that a store cannot hold");
  verb->add_option("--base", options.base_step, "Reuse unchanged bytes of this step (the latest)")
      ->type_name("N");
  verb->add_flag("--overwrite", options.overwrite, "Replace the step if it exists, in one switch");
  SetExamples(*verb,
              {"kv-admin import runs/gpt --step 0 model.safetensors",
               "kv-admin import runs/gpt --step 100 checkpoints/step-100",
               "kv-admin import runs/gpt --step 0 model.pt --prefix model",
               "kv-admin import runs/gpt --step 0 model.safetensors.index.json --prefix model"});
}

void AddExport(CLI::App& app, ExportOptions& options, std::string& shard_size) {
  CLI::App* verb = AddVerb(app, "export", "export STORE[@STEP] OUT [PATTERN...]",
                           "A step to safetensors or torch.save files, or a "
                           "torch.distributed.checkpoint");
  verb->add_option("STORE[@STEP]", options.address, "STORE or STORE@STEP; without @STEP the latest")
      ->required()
      ->type_name("");
  verb->add_option("OUT", options.target,
                   "NAME.safetensors, or a folder, which gets a model.safetensors; or with all "
                   "values: a file of torch.save, NAME.pt, .pth, .bin or .ckpt, or a directory of "
                   "torch.distributed.checkpoint, NAME.dcp")
      ->required()
      ->type_name("");
  verb->add_option(
          "PATTERN", options.patterns,
          "Keys to take: NAME takes all below it, * one element, ** any, !PATTERN excludes")
      ->type_name("");
  verb->add_option("--shard-size", shard_size,
                   "Larger than this becomes several files and an index (5GB); no bound for "
                   "torch.save")
      ->type_name("SIZE");
  verb->add_option("--format", options.format, "safetensors, torch or dcp, whatever OUT is called")
      ->check(CLI::IsMember({"safetensors", "torch", "dcp"}))
      ->type_name("FORMAT");
  verb->add_flag("--overwrite", options.overwrite,
                 "Replace files that exist, or the checkpoint that a directory holds");
  SetExamples(
      *verb, {"kv-admin export runs/gpt@100 gpt-100.safetensors model",
              "kv-admin export runs/gpt@100 gpt-100.pt", "kv-admin export runs/gpt@100 gpt-100.dcp",
              "kv-admin export runs/gpt@100 checkpoints/step-100 --format dcp",
              "kv-admin export runs/gpt out/ 'model.**' --shard-size 2GB"});
}

void AddDelete(CLI::App& app, DeleteOptions& options) {
  CLI::App* verb = AddVerb(app, "delete", "delete STORE STEP... [--dry-run]",
                           "Whole steps; bytes that other steps use stay");
  verb->add_option("STORE", options.store, "Directory of the store")->required()->type_name("");
  verb->add_option("STEP", options.steps, "Numbers of the steps")->required()->type_name("");
  verb->add_flag("--dry-run", options.dry_run, "Only say what would go");
  SetExamples(*verb, {"kv-admin delete runs/gpt 100 200 --dry-run"});
}

void AddRebuildIndex(CLI::App& app, std::string& store) {
  CLI::App* verb = AddVerb(app, "rebuild-index", "rebuild-index STORE",
                           "A new index from the manifests in commits/, for one that is damaged");
  verb->add_option("STORE", store, "Directory of the store")->required()->type_name("");
  SetExamples(*verb, {"kv-admin rebuild-index runs/gpt"});
}

Result<void> RunVerb(const std::string& verb, Arguments& arguments, Output& out) {
  if (verb == "import") return AdminImport(arguments.import, out);
  if (verb == "rebuild-index") return AdminRebuildIndex(arguments.rebuild_store, out);
  if (verb == "delete") return AdminDelete(arguments.delete_steps, out);
  CAIRN_TRY_ASSIGN(arguments.export_to.shard_bytes, ParseBytes(arguments.shard_size));
  return AdminExport(arguments.export_to, out);
}

Result<int> Main(int argc, char** argv) {
  CLI::App app("Changes what is in a Cairn store.", "kv-admin");
  StyleProgram(app, "kv-admin VERB STORE ...", CAIRN_VERSION);
  Arguments arguments;
  AddImport(app, arguments.import);
  AddExport(app, arguments.export_to, arguments.shard_size);
  AddDelete(app, arguments.delete_steps);
  AddRebuildIndex(app, arguments.rebuild_store);
  app.footer(
      "`kv-admin VERB --help` has the options of a verb and examples.\n"
      "Exit status: 0 done; 2 it could not be done, and the store is as it was.");
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
  // A closed pipe must not end a save half-way; the failed write is reported at the end.
  std::signal(SIGPIPE, SIG_IGN);
  return cairn::tools::internal::RunProgram(
      "kv-admin", [&] { return cairn::tools::internal::Main(argc, argv); });
}
