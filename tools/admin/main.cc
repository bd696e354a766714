// kv-admin: imports, exports, copies, edits, merges and deletes steps, compacts and rebuilds
// stores, and checks storages.

#include <csignal>
#include <string>

#include "tools/admin/copy.h"
#include "tools/admin/export.h"
#include "tools/admin/import.h"
#include "tools/admin/verbs.h"
#include "tools/common/exit_status.h"
#include "tools/common/program.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

/// The user's arguments. Each verb reads its part.
struct Values {
  ImportOptions import;
  ExportOptions export_to;
  DeleteOptions delete_steps;
  TagCommand tag;
  PolicyCommand policy;
  PruneCommand prune;
  CompactCommand compact;
  RepairCommand repair;
  CompressionCommand compression;
  EditCommand edit;
  MergeCommand merge;
  std::string rebuild_store;
  CopyCommand copy;
  MirrorCommand mirror;
  CheckStorageOptions check_storage;
  std::string shard_size = "5GB";
};

Argument StoreArgument(std::string& store) {
  return {.name = "STORE", .target = &store, .help = "Directory of the store", .required = true};
}

/// The arguments of a verb, and of conversions.
std::vector<Argument> WithConversion(std::vector<Argument> arguments, ConversionOptions& options) {
  for (Argument& each : ConversionArguments(options)) arguments.push_back(std::move(each));
  return arguments;
}

std::vector<Argument> ImportArguments(ImportOptions& options) {
  return {{.name = "STORE",
           .target = &options.store,
           .help = "Directory of the store, created if absent",
           .required = true},
          {.name = "FILE",
           .target = &options.files,
           .help = "Safetensors or torch.save files, all shards of one checkpoint, or its "
                   "*.index.json; or a torch.distributed.checkpoint directory; or, with --format "
                   "hf, the directory of a model",
           .required = true},
          {.name = "--step",
           .target = &options.step,
           .help = "Number of the new step",
           .value_name = "N",
           .required = true},
          {.name = "--format",
           .target = &options.format,
           .help = "hf: the directory of a model or a pipeline, with its configuration and "
                   "tokenizer (docs/import-export.md)",
           .value_name = "FORMAT",
           .choices = {"hf"}},
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
          {.name = "--tag",
           .target = &options.tags,
           .help = "Name the step, as kv-admin tag does; may be repeated",
           .value_name = "NAME"},
          {.name = "--overwrite",
           .target = &options.overwrite,
           .help = "Replace the step atomically if it exists"}};
}

Verb ImportVerb(ImportOptions& options) {
  return {
      .name = "import",
      .usage = "import STORE --step N FILE...",
      .summary =
          "Creates a step from safetensors or torch.save files, a torch.distributed.checkpoint "
          "directory, or a model directory",
      .arguments = WithConversion(ImportArguments(options), options.conversion),
      .examples = {"kv-admin import runs/gpt --step 0 model.safetensors",
                   "kv-admin import runs/gpt --step 100 checkpoints/step-100",
                   "kv-admin import runs/gpt --step 0 model.pt --prefix model",
                   "kv-admin import runs/gpt --step 0 model.safetensors.index.json --prefix model",
                   "kv-admin import runs/gpt --step 0 models/gpt --format hf"},
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
           .help = "safetensors, torch or dcp, regardless of the name of OUT; or hf: the directory "
                   "of a model, from a step that was imported or saved as one",
           .value_name = "FORMAT",
           .choices = {"safetensors", "torch", "dcp", "hf"}},
          {.name = "--since",
           .target = &options.since,
           .help = "Only the tensors that differ from this step (or tag), in one safetensors file",
           .value_name = "STEP"},
          {.name = "--sparse",
           .target = &options.sparse,
           .help = "With --since: of each tensor only the positions and values of the elements "
                   "that differ"},
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
          .arguments = WithConversion(ExportArguments(values), values.export_to.conversion),
          .examples = {"kv-admin export runs/gpt@100 gpt-100.safetensors model",
                       "kv-admin export runs/gpt@100 gpt-100.pt",
                       "kv-admin export runs/gpt@100 gpt-100.dcp",
                       "kv-admin export runs/gpt@100 checkpoints/step-100 --format dcp",
                       "kv-admin export runs/gpt@100 models/gpt-100 --format hf",
                       "kv-admin export runs/gpt out/ 'model.**' --shard-size 2GB",
                       "kv-admin export runs/gpt@42 update-42.safetensors --since 41 --sparse"},
          .run = [&](Output& out) -> Result<int> {
            CAIRN_TRY_ASSIGN(values.export_to.shard_bytes, ParseBytes(values.shard_size));
            return StatusOf(AdminExport(values.export_to, out));
          }};
}

Verb DeleteVerb(DeleteOptions& options) {
  return {.name = "delete",
          .usage = "delete STORE STEP... [--dry-run] [--no-grace]",
          .summary = "Deletes whole steps; bytes that other steps use remain",
          .arguments = {StoreArgument(options.store),
                        {.name = "STEP",
                         .target = &options.steps,
                         .help = "Numbers of the steps",
                         .required = true},
                        {.name = "--dry-run",
                         .target = &options.dry_run,
                         .help = "Only report what would be deleted"},
                        {.name = "--no-grace",
                         .target = &options.no_grace,
                         .help = "Free the space at once. Otherwise the files remain for 60 s, for "
                                 "readers that still use them, and the next save, delete or open "
                                 "for writing after that removes them"}},
          .examples = {"kv-admin delete runs/gpt 100 200 --dry-run",
                       "kv-admin delete runs/gpt 100 --no-grace"},
          .run = [&](Output& out) { return StatusOf(AdminDelete(options, out)); }};
}

Verb RebuildVerb(std::string& store) {
  return {.name = "rebuild",
          .usage = "rebuild STORE",
          .summary = "Recovers a store whose roots or tables cannot be read",
          .arguments = {StoreArgument(store)},
          .examples = {"kv-admin rebuild runs/gpt"},
          .run = [&](Output& out) { return StatusOf(AdminRebuild(store, out)); }};
}

Verb CheckStorageVerb(CheckStorageOptions& options) {
  return {.name = "check-storage",
          .usage = "check-storage ADDRESS [ADDRESS2]",
          .summary = "Checks whether a storage has the guarantees that Cairn needs",
          .arguments = {{.name = "ADDRESS",
                         .target = &options.address,
                         .help = "Directory for stores, below which the checks write and remove "
                                 "a new directory",
                         .required = true},
                        {.name = "ADDRESS2",
                         .target = &options.second_address,
                         .help = "Another mount of the same directory, to check what other "
                                 "machines see"},
                        {.name = "--rounds",
                         .target = &options.rounds,
                         .help = "Rounds of each check (200); slow ones stop after 30 s",
                         .value_name = "N",
                         .range = std::pair<uint64_t, uint64_t>(1, 1'000'000)},
                        {.name = "--json", .target = &options.json, .help = "Print JSON"}},
          .examples = {"kv-admin check-storage runs",
                       "kv-admin check-storage /mnt/first/runs /mnt/second/runs"},
          .notes =
              "Exit status: 0 all checks passed; 1 a guarantee is missing; 2 the checks could "
              "not run.",
          .run = [&](Output& out) { return AdminCheckStorage(options, out); }};
}

CommandLine MakeCommandLine(Values& values) {
  return {.name = "kv-admin",
          .version = CAIRN_VERSION,
          .summary = "Changes a Cairn store.",
          .usage = "kv-admin VERB STORE ...",
          .verbs = {ImportVerb(values.import),
                    ExportVerb(values),
                    DeleteVerb(values.delete_steps),
                    TagVerb(values.tag),
                    UntagVerb(values.tag),
                    PolicyVerb(values.policy),
                    PruneVerb(values.prune),
                    CompactVerb(values.compact),
                    CompressionVerb(values.compression),
                    RebuildVerb(values.rebuild_store),
                    RepairVerb(values.repair),
                    RenameVerb(values.edit),
                    DropVerb(values.edit),
                    GraftVerb(values.edit),
                    ForkVerb(values.edit),
                    MergeVerb(values.merge),
                    PushVerb(values.copy),
                    PullVerb(values.copy),
                    MirrorVerb(values.mirror),
                    CheckStorageVerb(values.check_storage)},
          .notes =
              "`kv-admin VERB --help` lists the options of a verb, with examples.\n"
              "Exit status: 0 success; 1 damage remains (repair); 2 failure, which leaves the "
              "store as it was, except that steps "
              "which were copied before it remain."};
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
