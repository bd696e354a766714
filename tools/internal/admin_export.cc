// `kv-admin export`: a step to safetensors files or to a file of torch.save.

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <span>

#include "core/checkpoint_store.h"
#include "core/key_pattern.h"
#include "core/safetensors.h"
#include "core/torch_export.h"
#include "tools/internal/address.h"
#include "tools/internal/admin_verbs.h"
#include "tools/internal/progress.h"
#include "tools/internal/text.h"

namespace cairn::tools::internal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".safetensors";

bool IsTorchName(std::string_view name) {
  return name.ends_with(".pt") || name.ends_with(".pth") || name.ends_with(".bin") ||
         name.ends_with(".ckpt");
}

/// A file that an export to `target` could replace, if there is one: the file itself, its index, or
/// a shard "NAME-00001-of-00003.safetensors".
Result<std::optional<fs::path>> FindExisting(const std::string& target) {
  std::error_code error;
  if (IsTorchName(target)) {
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
  if (error) return Fail(SystemError(error.value(), "looking into the folder", folder.string()));
  return std::nullopt;
}

Result<void> CheckTarget(const ExportOptions& options) {
  if (options.shard_bytes == 0)
    return Fail(ErrorCode::kInvalidArgument, "--shard-size must not be 0");
  if (options.overwrite) return {};
  CAIRN_TRY_ASSIGN(const auto existing, FindExisting(options.target));
  if (!existing) return {};
  return Fail(Error{.code = ErrorCode::kConflict,
                    .message = "the file exists; give --overwrite to replace it",
                    .file = existing->string()});
}

void PrintReport(uint64_t step, const std::string& what, uint64_t bytes, double seconds,
                 std::span<const std::string> files, Output& out) {
  out.WriteLine(fmt::format("step {}: {}, {}, in {} ({})", step, what, HumanBytes(bytes),
                            HumanSeconds(seconds), HumanRate(bytes, seconds)));
  for (const std::string& file : files) out.WriteLine(fmt::format("  {}", EscapeText(file)));
}

Result<void> ToTorch(const core::CheckpointStore& store, const core::Contents& contents,
                     const std::string& target, Output& out) {
  ProgressLine progress("exporting");
  CAIRN_TRY_ASSIGN(const core::TorchExportReport report,
                   core::ExportTorch(store, contents, target, progress.callback()));
  progress.Clear();
  std::string what = Plural(report.tensors, "tensor");
  if (report.values > 0) what += ", " + Plural(report.values, "plain value");
  PrintReport(contents.step.step, what, report.bytes, report.seconds, {&target, 1}, out);
  if (report.arrays > 0) {
    Warn("kv-admin", fmt::format("{} became torch tensors: weights_only takes no other",
                                 Plural(report.arrays, "numpy array")));
  }
  return {};
}

Result<void> ToSafetensors(const core::CheckpointStore& store, const core::Contents& contents,
                           const ExportOptions& options, Output& out) {
  ProgressLine progress("exporting");
  const core::ExportOptions how{.max_shard_bytes = options.shard_bytes,
                                .progress = progress.callback()};
  CAIRN_TRY_ASSIGN(const core::ExportReport report,
                   core::ExportSafetensors(store, contents, options.target, how));
  progress.Clear();
  PrintReport(contents.step.step, Plural(report.tensors, "tensor"), report.bytes, report.seconds,
              report.files, out);
  if (report.values_left_out > 0) {
    Warn("kv-admin", fmt::format("{} left out: safetensors holds tensors only",
                                 Plural(report.values_left_out, "plain value")));
  }
  return {};
}

}  // namespace

Result<void> AdminExport(const ExportOptions& options, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(options.address));
  CAIRN_TRY_ASSIGN(const core::KeyPatterns patterns, core::KeyPatterns::Parse(options.patterns));
  CAIRN_TRY(CheckTarget(options));
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kRead));
  CAIRN_TRY_ASSIGN(const core::Contents contents, store->List(address.step, patterns));
  const bool to_torch = IsTorchName(options.target);
  if (contents.tensors.empty() && (!to_torch || contents.values.empty())) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .message = "no tensor matches; kv-dump keys shows what there is",
                      .step = contents.step.step});
  }
  return to_torch ? ToTorch(*store, contents, options.target, out)
                  : ToSafetensors(*store, contents, options, out);
}

}  // namespace cairn::tools::internal
