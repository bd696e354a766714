// `kv-admin export`: writes a step to safetensors files, a file of torch.save, or a directory of
// torch.distributed.checkpoint or of a model.

#include "tools/admin/export.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <span>

#include "core/checkpoint_store.h"
#include "core/interop/model_directory/model_export.h"
#include "core/interop/safetensors/safetensors_export.h"
#include "core/interop/safetensors/safetensors_update.h"
#include "core/state_dict/key_pattern.h"
#include "core/upkeep/payload_reader.h"
#include "tools/admin/torch_files.h"
#include "tools/common/address.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".safetensors";

enum class Format { kSafetensors, kTorch, kDcp, kModel };

bool IsTorchName(std::string_view name) {
  return name.ends_with(".pt") || name.ends_with(".pth") || name.ends_with(".bin") ||
         name.ends_with(".ckpt");
}

bool IsDcpName(std::string_view name) {
  while (name.ends_with('/')) name.remove_suffix(1);
  return name.ends_with(".dcp");
}

Format FormatOf(const ExportOptions& options) {
  if (options.format == "torch") return Format::kTorch;
  if (options.format == "dcp") return Format::kDcp;
  if (options.format == "hf") return Format::kModel;
  if (options.format == "safetensors") return Format::kSafetensors;
  if (IsTorchName(options.target)) return Format::kTorch;
  return IsDcpName(options.target) ? Format::kDcp : Format::kSafetensors;
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
Result<std::optional<fs::path>> FindExisting(const std::string& target, Format format) {
  if (format == Format::kDcp) return FindFirstIn(target);
  std::error_code error;
  if (format == Format::kTorch) {
    return fs::exists(target, error) ? std::optional<fs::path>(target) : std::nullopt;
  }
  fs::path folder = target;
  std::string name = "model";
  if (target.ends_with(kSuffix)) {
    folder = fs::path(target).parent_path();
    name = fs::path(target).stem().string();
  }
  if (folder.empty()) folder = ".";
  if (!fs::exists(folder, error)) return std::nullopt;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string file = entries->path().filename().string();
    const bool whole = file == name + std::string(kSuffix);
    const bool index = file == name + std::string(kSuffix) + ".index.json";
    const bool shard = file.starts_with(name + "-") && file.ends_with(kSuffix) &&
                       file.find("-of-") != std::string::npos;
    if (whole || index || shard) return entries->path();
  }
  if (error) return Fail(SystemError(error.value(), "reading the folder", folder.string()));
  return std::nullopt;
}

Result<void> CheckTarget(const ExportOptions& options) {
  if (options.shard_bytes == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                "--shard-size must not be 0; write a size such as 2GB");
  }
  const Format format = FormatOf(options);
  if (format == Format::kModel && !options.patterns.empty()) {
    return Fail(
        ErrorCode::kInvalidArgument,
        "--format hf exports a complete model; omit the patterns, or give --format safetensors");
  }
  if (options.overwrite || format == Format::kModel) return {};  // the export checks a directory
  CAIRN_TRY_ASSIGN(const auto existing, FindExisting(options.target, format));
  if (!existing) return {};
  return Fail(Error{.code = ErrorCode::kConflict,
                    .message = format == Format::kDcp
                                   ? "the directory is not empty; give --overwrite to replace the "
                                     "checkpoint in it"
                                   : "the file exists; give --overwrite to replace it",
                    .file = existing->string()});
}

void PrintReport(uint64_t step, const std::string& what, uint64_t bytes, double seconds,
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

std::string_view NameOf(Format format) {
  switch (format) {
    case Format::kTorch:
      return "torch";
    case Format::kDcp:
      return "dcp";
    case Format::kModel:
      return "hf";
    default:
      return "safetensors";
  }
}

/// Exports to files of torch, or converts. Returns only with an error.
Result<void> ExportByPython(uint64_t step, const ExportOptions& options) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(options.address));
  std::vector<std::string> words = {"export",
                                    AsWord(address.store),
                                    AsWord(options.target),
                                    fmt::format("--step={}", step),
                                    fmt::format("--format={}", NameOf(FormatOf(options))),
                                    fmt::format("--shard-size={}", options.shard_bytes)};
  for (const std::string& pattern : options.patterns) words.push_back("--pattern=" + pattern);
  if (options.overwrite) words.emplace_back("--overwrite");
  AppendConversion(options.conversion, words);
  return BecomePython(words);
}

Result<void> ToSafetensors(const core::CheckpointStore& store, const core::Contents& contents,
                           const ExportOptions& options, Output& out) {
  ProgressLine progress("exporting");
  const core::SafetensorsExportOptions how{.max_shard_bytes = options.shard_bytes,
                                           .progress = progress.callback()};
  CAIRN_TRY_ASSIGN(const core::SafetensorsExportReport report,
                   core::ExportSafetensors(store, contents, options.target, how));
  progress.Clear();
  PrintReport(contents.step.step, Plural(report.tensors, "tensor"), report.bytes, report.seconds,
              report.files, out);
  if (report.values_left_out > 0) {
    Warn("kv-admin", fmt::format("{} left out: safetensors holds only tensors",
                                 Plural(report.values_left_out, "plain value")));
  }
  return {};
}

Result<void> ToModel(const core::CheckpointStore& store, const core::Contents& contents,
                     const ExportOptions& options, Output& out) {
  ProgressLine progress("exporting");
  const core::ModelExportOptions how{.max_shard_bytes = options.shard_bytes,
                                     .overwrite = options.overwrite,
                                     .progress = progress.callback()};
  CAIRN_TRY_ASSIGN(const core::ModelExportReport report,
                   core::ExportModelDirectory(store, contents, options.target, how));
  progress.Clear();
  PrintReport(contents.step.step, Plural(report.tensors, "tensor"), report.bytes, report.seconds,
              report.files, out);
  if (report.tensors_left_out + report.values_left_out > 0) {
    Warn("kv-admin", fmt::format("{} left out: they do not belong to the model",
                                 ContentsText(report.tensors_left_out, report.values_left_out)));
  }
  return {};
}

Result<void> CheckSince(const ExportOptions& options) {
  if (Converts(options.conversion) && !options.since.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "--since writes stored tensors; omit --rename, --rules and --dtype");
  }
  if (options.since.empty()) {
    if (!options.sparse) return {};
    return Fail(ErrorCode::kInvalidArgument, "--sparse needs --since STEP");
  }
  if (FormatOf(options) == Format::kSafetensors && options.target.ends_with(kSuffix)) return {};
  return Fail(ErrorCode::kInvalidArgument,
              "--since writes one safetensors file; name it NAME.safetensors");
}

Result<void> ToUpdate(const core::CheckpointStore& store, const core::Contents& contents,
                      uint64_t since, const core::KeyPatterns& patterns,
                      const ExportOptions& options, Output& out) {
  ProgressLine progress("comparing");
  CAIRN_TRY_ASSIGN(
      const core::SafetensorsUpdateReport report,
      core::ExportSafetensorsUpdate(
          store, since, contents, options.target,
          {.patterns = patterns, .sparse = options.sparse, .progress = progress.callback()}));
  progress.Clear();
  std::string what = fmt::format("changed since step {}: {}", since,
                                 Plural(report.complete_tensors + report.sparse_tensors, "tensor"));
  if (report.sparse_tensors > 0) {
    what += fmt::format(", of which {} with {}", report.sparse_tensors,
                        Plural(report.changed_elements, "changed element"));
  }
  if (report.removed_keys > 0) what += fmt::format("; {} removed", report.removed_keys);
  PrintReport(contents.step.step, what, report.bytes, report.seconds, {&options.target, 1}, out);
  return {};
}

Result<void> ToFormat(const core::CheckpointStore& store, const core::Contents& contents,
                      const ExportOptions& options, Output& out) {
  const Format format = FormatOf(options);
  if (contents.tensors.empty() && (format == Format::kSafetensors || contents.values.empty())) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .hint = Hint::kListKeys,
                      .message = "no tensor matches",
                      .step = contents.step.step});
  }
  switch (format) {
    case Format::kTorch:
    case Format::kDcp:
      return ExportByPython(contents.step.step, options);
    case Format::kModel:
      return ToModel(store, contents, options, out);
    default:
      return ToSafetensors(store, contents, options, out);
  }
}

}  // namespace

Result<void> AdminExport(const ExportOptions& options, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(options.address));
  CAIRN_TRY_ASSIGN(const core::KeyPatterns patterns, core::KeyPatterns::Parse(options.patterns));
  CAIRN_TRY(CheckTarget(options));
  CAIRN_TRY(CheckSince(options));
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kRead));
  if (Converts(options.conversion)) {
    CAIRN_TRY_ASSIGN(const core::Contents stored, store->List(address.step));
    return ExportByPython(stored.step.step, options);
  }
  CAIRN_TRY_ASSIGN(const core::Contents contents, store->List(address.step, patterns));
  if (!options.since.empty()) {
    CAIRN_TRY_ASSIGN(const Address since, ParseAddress(address.store + "@" + options.since));
    return ToUpdate(*store, contents, *since.step, patterns, options, out);
  }
  return ToFormat(*store, contents, options, out);
}

}  // namespace cairn::tools
