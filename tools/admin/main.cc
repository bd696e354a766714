// kv-admin: imports, exports and deletes steps, and rebuilds damaged indexes.

#include <csignal>
#include <string>

#include "tools/admin/delete.h"
#include "tools/admin/export.h"
#include "tools/admin/import.h"
#include "tools/admin/rebuild_index.h"
#include "tools/common/exit_status.h"
#include "tools/common/program.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

/// What the user wrote. Each verb reads its part.
struct Values {
  ImportOptions import;
  ExportOptions export_to;
  DeleteOptions delete_steps;
  std::string rebuild_store;
  std::string shard_size = "5GB";
};

Argument StoreArgument(std::string& store) {
  return {.name = "STORE", .target = &store, .help = "Directory of the store", .required = true};
}

std::vector<Argument> ImportArguments(ImportOptions& options) {
  return {{.name = "STORE",
           .target = &options.store,
           .help = "Directory of the store, created if absent",
           .required = true},
          {.name = "FILE",
           .target = &options.files,
           .help = "Safetensors or torch.save files, all shards of one checkpoint, or its "
                   "*.index.json; or a torch.distributed.checkpoint directory",
           .required = true},
          {.name = "--step",
           .target = &options.step,
           .help = "Number of the new step",
           .value_name = "N",
           .required = true},
          {.name = "--prefix",
           .target = &options.prefix,
           .help = "Put the tensors below this key: with \"model\", wte.weight becomes "
                   "model.wte.weight",
           .value_name = "KEY"},
          {.name = "--skip-unknown",
           .target = &options.skip_unknown,
           .help = "Leave out and list objects of classes that a store cannot hold"},
          {.name = "--base",
           .target = &options.base_step,
           .help = "Reuse unchanged bytes of this step (the latest)",
           .value_name = "N"},
          {.name = "--overwrite",
           .target = &options.overwrite,
           .help = "Replace the step atomically if it exists"}};
}

Verb ImportVerb(ImportOptions& options) {
  return {
      .name = "import",
      .usage = "import STORE --step N FILE...",
      .summary =
          "Creates a step from safetensors or torch.save files, or a torch.distributed.checkpoint",
      .arguments = ImportArguments(options),
      .examples = {"kv-admin import runs/gpt --step 0 model.safetensors",
                   "kv-admin import runs/gpt --step 100 checkpoints/step-100",
                   "kv-admin import runs/gpt --step 0 model.pt --prefix model",
                   "kv-admin import runs/gpt --step 0 model.safetensors.index.json --prefix model"},
      .run = [&](Output& out) { return StatusOf(AdminImport(options, out)); }};
}

std::vector<Argument> ExportArguments(Values& values) {
  ExportOptions& options = values.export_to;
  return {{.name = "STORE[@STEP]",
           .target = &options.address,
           .help = "STORE or STORE@STEP; the latest step without @STEP",
           .required = true},
          {.name = "OUT",
           .target = &options.target,
           .help = "NAME.safetensors, or a folder, which receives a model.safetensors; or, with "
                   "all values, a file of torch.save (NAME.pt, .pth, .bin or .ckpt) or a directory "
                   "of torch.distributed.checkpoint (NAME.dcp)",
           .required = true},
          {.name = "PATTERN",
           .target = &options.patterns,
           .help = "Keys to select: NAME selects all keys below it, * matches one element, ** any "
                   "number of elements; !PATTERN excludes"},
          {.name = "--shard-size",
           .target = &values.shard_size,
           .help = "Larger exports become several files and an index (5GB); torch.save has no "
                   "limit",
           .value_name = "SIZE"},
          {.name = "--format",
           .target = &options.format,
           .help = "safetensors, torch or dcp, regardless of the name of OUT",
           .value_name = "FORMAT",
           .choices = {"safetensors", "torch", "dcp"}},
          {.name = "--overwrite",
           .target = &options.overwrite,
           .help = "Replace existing files, or the checkpoint in a directory"}};
}

Verb ExportVerb(Values& values) {
  return {.name = "export",
          .usage = "export STORE[@STEP] OUT [PATTERN...]",
          .summary =
              "Writes a step to safetensors or torch.save files, or a "
              "torch.distributed.checkpoint",
          .arguments = ExportArguments(values),
          .examples = {"kv-admin export runs/gpt@100 gpt-100.safetensors model",
                       "kv-admin export runs/gpt@100 gpt-100.pt",
                       "kv-admin export runs/gpt@100 gpt-100.dcp",
                       "kv-admin export runs/gpt@100 checkpoints/step-100 --format dcp",
                       "kv-admin export runs/gpt out/ 'model.**' --shard-size 2GB"},
          .run = [&](Output& out) -> Result<int> {
            CAIRN_TRY_ASSIGN(values.export_to.shard_bytes, ParseBytes(values.shard_size));
            return StatusOf(AdminExport(values.export_to, out));
          }};
}

Verb DeleteVerb(DeleteOptions& options) {
  return {.name = "delete",
          .usage = "delete STORE STEP... [--dry-run]",
          .summary = "Deletes whole steps; bytes that other steps use remain",
          .arguments = {StoreArgument(options.store),
                        {.name = "STEP",
                         .target = &options.steps,
                         .help = "Numbers of the steps",
                         .required = true},
                        {.name = "--dry-run",
                         .target = &options.dry_run,
                         .help = "Only report what would be deleted"}},
          .examples = {"kv-admin delete runs/gpt 100 200 --dry-run"},
          .run = [&](Output& out) { return StatusOf(AdminDelete(options, out)); }};
}

Verb RebuildIndexVerb(std::string& store) {
  return {.name = "rebuild-index",
          .usage = "rebuild-index STORE",
          .summary = "Replaces a damaged index by one built from the manifests in commits/",
          .arguments = {StoreArgument(store)},
          .examples = {"kv-admin rebuild-index runs/gpt"},
          .run = [&](Output& out) { return StatusOf(AdminRebuildIndex(store, out)); }};
}

CommandLine MakeCommandLine(Values& values) {
  return {.name = "kv-admin",
          .version = CAIRN_VERSION,
          .summary = "Changes a Cairn store.",
          .usage = "kv-admin VERB STORE ...",
          .verbs = {ImportVerb(values.import), ExportVerb(values), DeleteVerb(values.delete_steps),
                    RebuildIndexVerb(values.rebuild_store)},
          .notes =
              "`kv-admin VERB --help` lists the options of a verb, with examples.\n"
              "Exit status: 0 success; 2 failure, which leaves the store as it was."};
}

}  // namespace
}  // namespace cairn::tools

int main(int argc, char** argv) {
  // A closed pipe must not interrupt a save; the failed write is reported at the end.
  std::signal(SIGPIPE, SIG_IGN);
  cairn::tools::InstallCancelHandler();
  cairn::tools::Values values;
  return cairn::tools::RunProgram(cairn::tools::MakeCommandLine(values), argc, argv);
}
