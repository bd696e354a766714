// `kv-admin import`: creates a step from checkpoints of other programs. Their format is recognized
// by their contents.

#include "tools/admin/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "core/checkpoint_store.h"
#include "core/interop/model_directory/model_directory.h"
#include "core/interop/safetensors/safetensors_file.h"
#include "core/save/save_options.h"
#include "tools/admin/import_sources.h"
#include "tools/admin/torch_files.h"
#include "tools/common/address.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;

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

Result<Input> ReadModel(const ImportOptions& options) {
  if (options.files.size() != 1 || options.skip_unknown) {
    return Fail(ErrorCode::kInvalidArgument,
                "--format hf imports one directory, without --skip-unknown");
  }
  std::error_code ignored;  // reading the directory reports it
  if (fs::is_regular_file(options.files.front(), ignored)) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message =
                          "--format hf imports the directory of a model, and this is a file; "
                          "omit --format to import it",
                      .file = options.files.front()});
  }
  Input input;
  CAIRN_TRY_ASSIGN(input.model, core::ReadModelDirectory(options.files.front(), options.prefix));
  CAIRN_TRY_ASSIGN(input.state, core::ModelDirectoryState(input.model));
  return input;
}

Result<Input> ReadInput(const ImportOptions& options, const ImportSources& sources) {
  if (options.format == "hf") return ReadModel(options);
  Input input;
  for (const std::string& path : sources.files) CAIRN_TRY(ReadFile(path, input));
  CAIRN_TRY(CheckPromised(sources, input));
  input.state = core::SafetensorsState(input.safetensors, options.prefix);
  return input;
}

/// Prints the warnings, but only the first of very many.
void WarnEach(const std::vector<std::string>& texts) {
  constexpr size_t kMaxLines = 20;
  for (size_t i = 0; i < std::min(texts.size(), kMaxLines); ++i) Warn("kv-admin", texts[i]);
  if (texts.size() > kMaxLines) {
    Warn("kv-admin", fmt::format("and {} more", GroupedCount(texts.size() - kMaxLines)));
  }
}

/// Prints a warning for everything that was left out.
void WarnLeftOut(const Input& input) {
  std::vector<std::string> left_out;
  for (const std::string& file : input.model.left_out) {
    left_out.push_back(fmt::format("left out: {}", EscapeText(file)));
  }
  WarnEach(left_out);
  for (const std::string& name : input.metadata_left_out) {
    Warn("kv-admin", fmt::format("the metadata entry '{}' was left out", EscapeText(name)));
  }
}

void PrintReport(const core::SaveReport& report, const core::StateDict& state, Output& out) {
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
Result<void> ImportByPython(const ImportOptions& options, const ImportSources& sources) {
  const bool has_torch = std::ranges::any_of(sources.files, IsOfTorch);
  if (has_torch && !std::ranges::all_of(sources.files, IsOfTorch)) {
    return Fail(ErrorCode::kInvalidArgument,
                "one import takes either files of torch or safetensors files; import them as two "
                "steps, or convert one of them");
  }
  std::vector<std::string> words = {"import", AsWord(options.store), "--step",
                                    fmt::format("{}", options.step)};
  if (!options.prefix.empty()) words.push_back("--prefix=" + options.prefix);
  if (options.skip_unknown) words.emplace_back("--skip-unknown");
  if (options.base_step) words.push_back(fmt::format("--base={}", *options.base_step));
  for (const std::string& tag : options.tags) words.push_back("--tag=" + tag);
  if (options.overwrite) words.emplace_back("--overwrite");
  AppendConversion(options.conversion, words);
  if (has_torch) {
    for (const std::string& index : sources.indexes) words.push_back("--index=" + index);
  } else {
    std::error_code ignored;  // then Python cannot start it
    words.push_back("--program=" + fs::read_symlink("/proc/self/exe", ignored).string());
    if (!options.format.empty()) words.push_back("--format=" + options.format);
  }
  const auto& files = has_torch ? sources.files : options.files;
  for (const std::string& file : files) words.push_back(AsWord(file));
  return BecomePython(words);
}

}  // namespace

Result<void> AdminImport(const ImportOptions& options, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(options.store));
  if (address.step) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("write the step as --step {}, not after the store", *address.step));
  }
  ImportSources sources;
  if (options.format != "hf") {
    CAIRN_TRY_ASSIGN(sources, FindImportSources(options.files));
  }
  if (std::ranges::any_of(sources.files, IsOfTorch) || Converts(options.conversion)) {
    return ImportByPython(options, sources);
  }
  // What is refused must not create an empty store, so the input is read and checked first.
  CAIRN_TRY_ASSIGN(const Input input, ReadInput(options, sources));
  ProgressLine progress("importing");
  const core::SaveOptions save{.overwrite = options.overwrite,
                               .base_step = options.base_step,
                               .tags = options.tags,
                               .progress = progress.callback()};
  CAIRN_TRY(core::CheckSave(input.state, save));
  if (options.base_step) CAIRN_TRY(CheckStepExists(address.store, *options.base_step));
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kWrite));
  CAIRN_TRY_ASSIGN(const core::SaveReport report, store->Save(options.step, input.state, save));
  CAIRN_TRY(store->Close());
  progress.Clear();
  PrintReport(report, input.state, out);
  WarnLeftOut(input);
  return {};
}

}  // namespace cairn::tools
