// `kv-admin export`: writes a step to safetensors files, a file of torch.save, or a directory of
// torch.distributed.checkpoint or of a model.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>

#include "core/interop/model_directory/model_export.h"
#include "core/interop/safetensors/safetensors_export.h"
#include "core/interop/safetensors/safetensors_update.h"
#include "core/state_dict/key_pattern.h"
#include "core/upkeep/payload_reader.h"
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

struct ExportCommand {
  std::string address;
  std::string target;
  std::string format;  // safetensors, torch, dcp or hf; empty: depends on the name of the target
  std::vector<std::string> patterns;  // select the keys after the conversion; none: all
  Conversion conversion;
  std::string shard_size = "5GB";
  uint64_t shard_bytes = 0;  // parsed
  bool overwrite = false;
  std::string since;    // a step or a tag: export only what differs from it
  bool sparse = false;  // export only the changed elements of tensors
};

constexpr std::string_view kSuffix = ".safetensors";

bool IsTorchName(std::string_view name) {
  return name.ends_with(".pt") || name.ends_with(".pth") || name.ends_with(".bin") ||
         name.ends_with(".ckpt");
}

/// Returns safetensors, torch, dcp or hf.
std::string FormatOf(const ExportCommand& command) {
  if (!command.format.empty()) return command.format;
  if (IsTorchName(command.target)) return "torch";
  std::string_view name = command.target;
  while (name.ends_with('/')) name.remove_suffix(1);
  return name.ends_with(".dcp") ? "dcp" : "safetensors";
}

/// Returns an entry of `folder`; nothing if it is empty or absent.
Result<std::optional<fs::path>> FindFirstIn(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return std::nullopt;
  const fs::directory_iterator entries(folder, error);
  if (error) return Fail(SystemError(error.value(), "reading the folder", folder.string()));
  if (entries == fs::directory_iterator()) return std::nullopt;
  return entries->path();
}

/// Returns a file that an export to `target` could replace, if there is one: the file itself, its
/// index, or a shard "NAME-00001-of-00003.safetensors".
Result<std::optional<fs::path>> FindExisting(const std::string& target, const std::string& format) {
  if (format == "dcp") return FindFirstIn(target);
  std::error_code error;
  if (format == "torch") {
    return fs::exists(target, error) ? std::optional<fs::path>(target) : std::nullopt;
  }
  CAIRN_TRY_ASSIGN(const auto files, core::FindExportedFiles(target));
  return files.empty() ? std::nullopt : std::optional<fs::path>(files.front());
}

Result<void> CheckTarget(const ExportCommand& command) {
  if (command.shard_bytes == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "--shard-size must not be 0; write a size such as 2GB");
  }
  const std::string format = FormatOf(command);
  if (format == "hf" && !command.patterns.empty()) {
    return Fail(
        ErrorCode::kInvalidArgument,
        "--format hf exports a complete model; omit the patterns, or give --format safetensors");
  }
  if (command.overwrite || format == "hf") return {};  // the export checks a directory
  CAIRN_TRY_ASSIGN(const auto existing, FindExisting(command.target, format));
  if (!existing) return {};
  return Fail(Error{.code = ErrorCode::kConflict,
                    .message = format == "dcp"
                                   ? "the directory is not empty; give --overwrite to replace the "
                                     "checkpoint in it"
                                   : "the file exists; give --overwrite to replace it",
                    .file = existing->string()});
}

void PrintExport(uint64_t step, const std::string& what, uint64_t bytes, double seconds,
                 std::span<const std::string> files, Output& out) {
  out.WriteLine(fmt::format("step {}: {}, {}, in {} ({})", step, what, HumanBytes(bytes),
                            HumanSeconds(seconds), HumanRate(bytes, seconds)));
  for (const std::string& file : files) out.WriteLine(fmt::format("  {}", EscapeText(file)));
}

/// "12 tensors, 3 plain values", for a format that has plain values.
std::string ContentsText(uint64_t tensors, uint64_t values) {
  std::string what = Plural(tensors, "tensor");
  if (values > 0) what += ", " + Plural(values, "plain value");
  return what;
}

/// Exports to files of torch, or converts. Returns only with an error.
Result<void> ExportByPython(uint64_t step, const ExportCommand& command) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.address));
  std::vector<std::string> words = {"export",
                                    AsWord(address.store),
                                    AsWord(command.target),
                                    fmt::format("--step={}", step),
                                    "--format=" + FormatOf(command),
                                    fmt::format("--shard-size={}", command.shard_bytes)};
  for (const std::string& pattern : command.patterns) words.push_back("--pattern=" + pattern);
  if (command.overwrite) words.emplace_back("--overwrite");
  command.conversion.AppendTo(words);
  return BecomePython(words);
}

Result<void> ToSafetensors(const core::CheckpointStore& store, const core::Contents& contents,
                           const ExportCommand& command, Output& out) {
  ProgressLine progress("exporting");
  const core::SafetensorsExportOptions how{.max_shard_bytes = command.shard_bytes,
                                           .replaces = command.overwrite,
                                           .progress = progress.callback()};
  CAIRN_TRY_ASSIGN(const core::SafetensorsExportReport report,
                   core::ExportSafetensors(store, contents, command.target, how));
  progress.Clear();
  PrintExport(contents.step.step, Plural(report.tensors, "tensor"), report.bytes, report.seconds,
              report.files, out);
  if (report.values_left_out > 0) {
    Warn("kv-admin", fmt::format("{} left out: safetensors holds only tensors",
                                 Plural(report.values_left_out, "plain value")));
  }
  return {};
}

Result<void> ToModel(const core::CheckpointStore& store, const core::Contents& contents,
                     const ExportCommand& command, Output& out) {
  ProgressLine progress("exporting");
  const core::ModelExportOptions how{.max_shard_bytes = command.shard_bytes,
                                     .overwrite = command.overwrite,
                                     .progress = progress.callback()};
  CAIRN_TRY_ASSIGN(const core::ModelExportReport report,
                   core::ExportModelDirectory(store, contents, command.target, how));
  progress.Clear();
  PrintExport(contents.step.step, Plural(report.tensors, "tensor"), report.bytes, report.seconds,
              report.files, out);
  if (report.tensors_left_out + report.values_left_out > 0) {
    Warn("kv-admin", fmt::format("{} left out: they do not belong to the model",
                                 ContentsText(report.tensors_left_out, report.values_left_out)));
  }
  return {};
}

Result<void> CheckSince(const ExportCommand& command) {
  if (!command.conversion.empty() && !command.since.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "--since writes stored tensors; omit --rename, --rules and --dtype");
  }
  if (command.since.empty()) {
    if (!command.sparse) return {};
    return Fail(ErrorCode::kInvalidArgument, "--sparse needs --since STEP");
  }
  if (FormatOf(command) == "safetensors" && command.target.ends_with(kSuffix)) return {};
  return Fail(ErrorCode::kInvalidArgument,
              "--since writes one safetensors file; name it NAME.safetensors");
}

Result<void> ToUpdate(const core::CheckpointStore& store, const core::Contents& contents,
                      uint64_t since, const core::KeyPatterns& patterns,
                      const ExportCommand& command, Output& out) {
  ProgressLine progress("comparing");
  CAIRN_TRY_ASSIGN(
      const core::SafetensorsUpdateReport report,
      core::ExportSafetensorsUpdate(
          store, since, contents, command.target,
          {.patterns = patterns, .sparse = command.sparse, .progress = progress.callback()}));
  if (command.overwrite) CAIRN_TRY(core::RemoveReplacedFiles(command.target, {command.target}));
  progress.Clear();
  std::string what = fmt::format("changed since step {}: {}", since,
                                 Plural(report.complete_tensors + report.sparse_tensors, "tensor"));
  if (report.sparse_tensors > 0) {
    what += fmt::format(", of which {} with {}", report.sparse_tensors,
                        Plural(report.changed_elements, "changed element"));
  }
  if (report.removed_keys > 0) what += fmt::format("; {} removed", report.removed_keys);
  PrintExport(contents.step.step, what, report.bytes, report.seconds, {&command.target, 1}, out);
  return {};
}

Result<void> ToFormat(const core::CheckpointStore& store, const core::Contents& contents,
                      const ExportCommand& command, Output& out) {
  const std::string format = FormatOf(command);
  if (std::ranges::all_of(contents.tensors, &core::TensorInfo::hidden) &&
      (format == "safetensors" || contents.values.empty())) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .hint = Hint::kListKeys,
                      .message = "no tensor matches",
                      .step = contents.step.step});
  }
  if (format == "torch" || format == "dcp") return ExportByPython(contents.step.step, command);
  if (format == "hf") return ToModel(store, contents, command, out);
  return ToSafetensors(store, contents, command, out);
}

/// Exports the keys that match the patterns, and prints what was written.
Result<void> Export(ExportCommand command, Output& out) {
  CAIRN_TRY_ASSIGN(command.shard_bytes, ParseBytes(command.shard_size));
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(command.address));
  CAIRN_TRY_ASSIGN(const core::KeyPatterns patterns, core::KeyPatterns::Parse(command.patterns));
  CAIRN_TRY(CheckTarget(command));
  CAIRN_TRY(CheckSince(command));
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kRead));
  if (!command.conversion.empty()) {
    CAIRN_TRY_ASSIGN(const core::Contents stored, store->List(address.step));
    return ExportByPython(stored.step.step, command);
  }
  CAIRN_TRY_ASSIGN(const core::Contents contents, store->List(address.step, patterns));
  if (!command.since.empty()) {
    CAIRN_TRY_ASSIGN(const Address since, ParseAddress(address.store + "@" + command.since));
    if (!since.step || since.store != address.store) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is neither a step nor a tag of this store; --since takes one "
                              "without the store",
                              EscapeText(command.since)));
    }
    return ToUpdate(*store, contents, *since.step, patterns, command, out);
  }
  return ToFormat(*store, contents, command, out);
}

std::vector<Argument> ExportArguments(ExportCommand& command) {
  return {
      StepArgument(command.address),
      Required("OUT", &command.target,
               "NAME.safetensors, or a folder, which receives a model.safetensors; or, with "
               "all values, a file of torch.save (NAME.pt, .pth, .bin or .ckpt) or a directory "
               "of torch.distributed.checkpoint (NAME.dcp)"),
      Positional("PATTERN", &command.patterns,
                 "Keys to select: NAME selects all keys below it, * matches one element, ** any "
                 "number of elements, [[] a [; !PATTERN excludes"),
      Option("--shard-size", "SIZE", &command.shard_size,
             "Larger exports become several files and an index (5GB); torch.save has no "
             "limit"),
      {.name = "--format",
       .target = &command.format,
       .help = "safetensors, torch or dcp, regardless of the name of OUT; or hf: the directory "
               "of a model, from a step that was imported or saved as one",
       .value_name = "FORMAT",
       .choices = {"safetensors", "torch", "dcp", "hf"}},
      Option("--since", "STEP", &command.since,
             "Only the tensors that differ from this step (or tag), in one safetensors file"),
      Flag("--sparse", command.sparse,
           "With --since: of each tensor only the positions and values of the elements "
           "that differ"),
      Flag("--overwrite", command.overwrite,
           "Replace existing files, or the checkpoint in a directory")};
}

}  // namespace

Verb ExportVerb() {
  const auto command = std::make_shared<ExportCommand>();
  return {.name = "export",
          .usage = "export STORE[@STEP] OUT [PATTERN...]",
          .summary =
              "Writes a step to safetensors or torch.save files, or a "
              "torch.distributed.checkpoint",
          .arguments = Joined(ExportArguments(*command), command->conversion.Arguments()),
          .examples = {"kv-admin export runs/gpt@100 gpt-100.safetensors model",
                       "kv-admin export runs/gpt@100 gpt-100.pt",
                       "kv-admin export runs/gpt@100 gpt-100.dcp",
                       "kv-admin export runs/gpt@100 checkpoints/step-100 --format dcp",
                       "kv-admin export runs/gpt@100 models/gpt-100 --format hf",
                       "kv-admin export runs/gpt out/ 'model.**' --shard-size 2GB",
                       "kv-admin export runs/gpt@42 update-42.safetensors --since 41 --sparse"},
          .run = [command](Output& out) { return StatusOf(Export(*command, out)); }};
}

}  // namespace cairn::tools
