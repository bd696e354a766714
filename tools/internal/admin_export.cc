// `kv-admin export`: tensors of a step to safetensors files.

#include <fmt/format.h>

#include <filesystem>

#include "core/checkpoint_store.h"
#include "core/key_pattern.h"
#include "core/safetensors.h"
#include "tools/internal/address.h"
#include "tools/internal/admin_verbs.h"
#include "tools/internal/progress.h"
#include "tools/internal/text.h"

namespace cairn::tools::internal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".safetensors";

/// A file that an export to `target` could replace, if there is one: the file itself, its index, or
/// a shard "NAME-00001-of-00003.safetensors".
Result<std::optional<fs::path>> FindExisting(const std::string& target) {
  fs::path folder = target;
  std::string name = "model";
  if (target.ends_with(kSuffix)) {
    folder = fs::path(target).parent_path();
    name = fs::path(target).stem().string();
  }
  if (folder.empty()) folder = ".";
  std::error_code error;
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
  for (const std::string_view suffix : {".pt", ".pth", ".bin", ".ckpt"}) {
    if (options.target.ends_with(suffix)) {
      return Fail(Error{.code = ErrorCode::kUnimplemented,
                        .message = "only safetensors can be written; name it *.safetensors",
                        .file = options.target});
    }
  }
  if (options.shard_bytes == 0)
    return Fail(ErrorCode::kInvalidArgument, "--shard-size must not be 0");
  if (options.overwrite) return {};
  CAIRN_TRY_ASSIGN(const auto existing, FindExisting(options.target));
  if (!existing) return {};
  return Fail(Error{.code = ErrorCode::kConflict,
                    .message = "the file exists; give --overwrite to replace it",
                    .file = existing->string()});
}

}  // namespace

Result<void> AdminExport(const ExportOptions& options, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(options.address));
  CAIRN_TRY_ASSIGN(const core::KeyPatterns patterns, core::KeyPatterns::Parse(options.patterns));
  CAIRN_TRY(CheckTarget(options));
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kRead));
  CAIRN_TRY_ASSIGN(const core::Contents contents, store->List(address.step, patterns));
  if (contents.tensors.empty()) {
    return Fail(Error{.code = ErrorCode::kNotFound,
                      .message = "no tensor matches; kv-dump keys shows what there is",
                      .step = contents.step.step});
  }
  ProgressLine progress("exporting");
  const core::ExportOptions how{.max_shard_bytes = options.shard_bytes,
                                .progress = progress.callback()};
  CAIRN_TRY_ASSIGN(const core::ExportReport report,
                   core::ExportSafetensors(*store, contents, options.target, how));
  progress.Clear();
  out.WriteLine(fmt::format("step {}: {}, {}, in {} ({})", contents.step.step,
                            Plural(report.tensors, "tensor"), HumanBytes(report.bytes),
                            HumanSeconds(report.seconds), HumanRate(report.bytes, report.seconds)));
  for (const std::string& file : report.files) out.WriteLine(fmt::format("  {}", EscapeText(file)));
  if (report.values_left_out > 0) {
    Warn("kv-admin", fmt::format("{} left out: safetensors holds tensors only",
                                 Plural(report.values_left_out, "plain value")));
  }
  return {};
}

}  // namespace cairn::tools::internal
