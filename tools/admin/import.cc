// `kv-admin import`: creates a step from checkpoints of other programs. Their format is recognized
// by their contents.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include "core/interop/model_directory/model_directory.h"
#include "core/interop/safetensors/safetensors_file.h"
#include "core/interop/safetensors/safetensors_format.h"
#include "core/save/save_options.h"
#include "kv/read/snapshot.h"
#include "tools/admin/python_package.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;

struct ImportCommand {
  std::string store;
  uint64_t step = 0;
  std::vector<std::string> files;
  std::string format;  // hf: one directory of a model; empty: each file is recognized
  std::string prefix;  // the map of the state dict that receives the tensors; empty: the root
  std::optional<uint64_t> base_step;
  bool overwrite = false;
  std::vector<std::string> tags;
  Conversion conversion;
  bool skip_unknown = false;
};

/// The files that an import reads.
struct ImportSources {
  std::vector<std::string> files;  // each file once, in the order in which it was first named
  std::vector<std::string> indexes;
  std::map<std::string, std::string> promised;  // tensor -> index file that names it
};

/// Resolves what the user named: a file or a directory of torch.distributed.checkpoint stands for
/// itself, a *.index.json for the shards that it lists. kInvalidArgument: another kind of
/// directory. kDataLoss: an index cannot be read, or names a file outside its own directory.
Result<ImportSources> FindImportSources(const std::vector<std::string>& names) {
  ImportSources sources;
  std::set<fs::path> seen;
  const auto add = [&](const fs::path& path) {
    std::error_code error;  // a path that cannot be resolved is kept, and opening it will fail
    const fs::path canonical = fs::weakly_canonical(path, error);
    if (seen.insert(error ? path : canonical).second) sources.files.push_back(path.string());
  };
  for (const std::string& name : names) {
    std::error_code ignored;  // the open reports what is wrong with a path
    if (fs::is_directory(name, ignored) && !LooksLikeDcpCheckpoint(name)) {
      const bool is_store = fs::exists(fs::path(name) / "CAIRN", ignored);
      return Fail(Error{
          .code = ErrorCode::kInvalidArgument,
          .message = is_store
                         ? "a Cairn store; kv-admin pull copies its steps"
                         : "a directory without .metadata; name its *.safetensors or *.bin files "
                           "or their *.index.json, or add --format hf to import a model",
          .file = name});
    }
    if (!name.ends_with(".json")) {
      add(name);
      continue;
    }
    CAIRN_TRY_ASSIGN(const auto shards, core::ReadShardIndex(name));
    sources.indexes.push_back(name);
    for (const auto& [tensor, shard] : shards) {
      sources.promised[tensor] = name;
      add(fs::path(name).parent_path() / shard);
    }
  }
  return sources;
}

/// The input that was read. `state` has views of the memory of `model` and `safetensors`.
struct Input {
  core::ModelDirectory model;
  std::vector<core::SafetensorsFile> safetensors;
  core::StateDict state;
  std::set<std::string> metadata_left_out;
};

Result<void> ReadFile(const std::string& path, Input& input) {
  auto file = core::SafetensorsFile::Open(path);
  if (file) {
    for (const auto& [name, value] : file->metadata()) {
      if (name != "format") input.metadata_left_out.insert(name);  // "pt" in nearly every file
    }
    input.safetensors.push_back(*std::move(file));
    return {};
  }
  std::error_code ignored;
  if (file.error().code != ErrorCode::kDataLoss || path.ends_with(".safetensors") ||
      !fs::is_regular_file(path, ignored)) {
    return Fail(std::move(file).error());
  }
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = "the file is neither a safetensors file nor one of torch.save, "
                               "which are the files that can be imported",
                    .file = path});
}

Result<void> CheckPromised(const ImportSources& sources, const Input& input) {
  std::map<std::string, std::string> missing = sources.promised;
  for (const core::SafetensorsFile& file : input.safetensors) {
    for (const core::SafetensorsTensor& tensor : file.tensors()) missing.erase(tensor.name);
  }
  if (missing.empty()) return {};
  const auto& [tensor, index] = *missing.begin();
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .hint = Hint::kFetchFile,
                    .message = "the index names a tensor that is in no shard",
                    .key = tensor,
                    .file = index});
}

Result<Input> ReadModel(const ImportCommand& command) {
  if (command.files.size() != 1 || command.skip_unknown) {
    return Fail(ErrorCode::kInvalidArgument,
                "--format hf imports one directory, without --skip-unknown");
  }
  std::error_code ignored;  // reading the directory reports it
  if (fs::is_regular_file(command.files.front(), ignored)) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message =
                          "--format hf imports the directory of a model, and this is a file; "
                          "omit --format to import it",
                      .file = command.files.front()});
  }
  Input input;
  CAIRN_TRY_ASSIGN(input.model, core::ReadModelDirectory(command.files.front(), command.prefix));
  CAIRN_TRY_ASSIGN(input.state, core::ModelDirectoryState(input.model));
  return input;
}

Result<Input> ReadInput(const ImportCommand& command, const ImportSources& sources) {
  if (command.format == "hf") return ReadModel(command);
  Input input;
  for (const std::string& path : sources.files) CAIRN_TRY(ReadFile(path, input));
  CAIRN_TRY(CheckPromised(sources, input));
  input.state = core::SafetensorsState(input.safetensors, command.prefix);
  return input;
}

/// Prints a warning for everything that was left out, but only for the first of very many files.
void WarnLeftOut(const Input& input) {
  constexpr size_t kMaxFiles = 20;
  const auto& files = input.model.left_out;
  for (size_t i = 0; i < std::min(files.size(), kMaxFiles); ++i) {
    Warn("kv-admin", fmt::format("left out: {}", EscapeText(files[i])));
  }
  if (files.size() > kMaxFiles) {
    Warn("kv-admin", fmt::format("and {} more", GroupedCount(files.size() - kMaxFiles)));
  }
  for (const std::string& name : input.metadata_left_out) {
    Warn("kv-admin", fmt::format("the metadata entry '{}' was left out", EscapeText(name)));
  }
}

void PrintImport(const core::SaveReport& report, const core::StateDict& state, Output& out) {
  const size_t values = state.slot.size() - state.tensors.size();
  std::string what = Plural(state.tensors.size(), "tensor");
  if (values > 0) what += ", " + Plural(values, "plain value");
  out.WriteLine(fmt::format("step {}: {}, {}, in {} ({})", report.step, what,
                            HumanBytes(report.logical_bytes), HumanSeconds(report.seconds),
                            HumanRate(report.logical_bytes, report.seconds)));
  if (report.chunks_reused > 0) {
    out.WriteLine(fmt::format("{} of {} chunks existed already; {} written",
                              GroupedCount(report.chunks_reused), GroupedCount(report.chunks),
                              HumanBytes(report.written_bytes)));
  }
}

Result<void> CheckIsSomething(const core::StateDict& state) {
  if (!state.slot.empty()) return {};
  return Fail(ErrorCode::kInvalidArgument,
              "there is nothing to import: the files contain neither tensors nor values");
}

Result<void> CheckStepExists(const std::string& address, uint64_t step) {
  CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::Open(address, kv::OpenMode::kRead));
  CAIRN_TRY_ASSIGN(const auto snapshot, store->kv().Latest());
  CAIRN_TRY(snapshot->FindStep(step));
  return {};
}

bool IsOfTorch(const std::string& path) {
  return LooksLikeDcpCheckpoint(path) || LooksLikeTorchFile(path);
}

/// Imports files of torch, or converts others. Returns only with an error.
Result<void> ImportByPython(const ImportCommand& command, const ImportSources& sources) {
  const bool has_torch = std::ranges::any_of(sources.files, IsOfTorch);
  if (has_torch && !std::ranges::all_of(sources.files, IsOfTorch)) {
    return Fail(ErrorCode::kInvalidArgument,
                "one import takes either files of torch or safetensors files; import them as two "
                "steps, or convert one of them");
  }
  std::vector<std::string> words = {"import", AsWord(command.store), "--step",
                                    fmt::format("{}", command.step)};
  if (!command.prefix.empty()) words.push_back("--prefix=" + command.prefix);
  if (command.skip_unknown) words.emplace_back("--skip-unknown");
  if (command.base_step) words.push_back(fmt::format("--base={}", *command.base_step));
  for (const std::string& tag : command.tags) words.push_back("--tag=" + tag);
  if (command.overwrite) words.emplace_back("--overwrite");
  command.conversion.AppendTo(words);
  if (has_torch) {
    for (const std::string& index : sources.indexes) words.push_back("--index=" + index);
  } else {
    std::error_code ignored;  // then Python cannot start it
    words.push_back("--program=" + fs::read_symlink("/proc/self/exe", ignored).string());
    if (!command.format.empty()) words.push_back("--format=" + command.format);
  }
  const auto& files = has_torch ? sources.files : command.files;
  for (const std::string& file : files) words.push_back(AsWord(file));
  return BecomePython(words);
}

/// Saves what the files contain as one step, and prints what was saved and what was omitted.
Result<void> Import(const ImportCommand& command, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.store));
  if (address.step) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("write the step as --step {}, not after the store", *address.step));
  }
  ImportSources sources;
  if (command.format != "hf") {
    CAIRN_TRY_ASSIGN(sources, FindImportSources(command.files));
  }
  if (std::ranges::any_of(sources.files, IsOfTorch) || !command.conversion.empty()) {
    return ImportByPython(command, sources);
  }
  // What is refused must not create an empty store, so the input is read and checked first.
  CAIRN_TRY_ASSIGN(const Input input, ReadInput(command, sources));
  CAIRN_TRY(CheckIsSomething(input.state));
  ProgressLine progress("importing");
  const core::SaveOptions save{.overwrite = command.overwrite,
                               .base_step = command.base_step,
                               .tags = command.tags,
                               .progress = progress.callback()};
  CAIRN_TRY(core::CheckSave(input.state, save));
  if (command.base_step) CAIRN_TRY(CheckStepExists(address.store, *command.base_step));
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kWrite));
  CAIRN_TRY_ASSIGN(const core::SaveReport report, store->Save(command.step, input.state, save));
  CAIRN_TRY(store->Close());
  progress.Clear();
  PrintImport(report, input.state, out);
  WarnLeftOut(input);
  return {};
}

std::vector<Argument> ImportArguments(ImportCommand& command) {
  return {
      Required("STORE", &command.store, "Directory of the store, created if absent"),
      Required("FILE", &command.files,
               "Safetensors or torch.save files, all shards of one checkpoint, or its "
               "*.index.json; or a torch.distributed.checkpoint directory; or, with --format "
               "hf, the directory of a model"),
      RequiredOption("--step", "N", &command.step, "Number of the new step"),
      {.name = "--format",
       .target = &command.format,
       .help = "hf: the directory of a model or a pipeline, with its configuration and "
               "tokenizer (docs/import-export.md)",
       .value_name = "FORMAT",
       .choices = {"hf"}},
      Option("--prefix", "KEY", &command.prefix,
             "Put the tensors below this key: with \"model\", wte.weight becomes "
             "model.wte.weight"),
      Flag("--skip-unknown", command.skip_unknown,
           "Leave out and list objects of classes that a store cannot hold"),
      Option("--base", "N", &command.base_step, "Reuse unchanged bytes of this step (the latest)"),
      Option("--tag", "NAME", &command.tags,
             "Name the step, as kv-admin tag does; may be repeated"),
      Flag("--overwrite", command.overwrite, "Replace the step atomically if it exists")};
}

}  // namespace

Verb ImportVerb() {
  const auto command = std::make_shared<ImportCommand>();
  return {
      .name = "import",
      .usage = "import STORE --step N FILE...",
      .summary =
          "Creates a step from safetensors or torch.save files, a torch.distributed.checkpoint "
          "directory, or a model directory",
      .arguments = Joined(ImportArguments(*command), command->conversion.Arguments()),
      .examples = {"kv-admin import runs/gpt --step 0 model.safetensors",
                   "kv-admin import runs/gpt --step 100 checkpoints/step-100",
                   "kv-admin import runs/gpt --step 0 model.pt --prefix model",
                   "kv-admin import runs/gpt --step 0 model.safetensors.index.json --prefix model",
                   "kv-admin import runs/gpt --step 0 models/gpt --format hf"},
      .run = [command](Output& out) { return StatusOf(Import(*command, out)); }};
}

}  // namespace cairn::tools
