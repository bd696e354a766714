// `kv-admin import`: creates a step from checkpoints of other programs. Their format is recognized
// by their contents.

#include "tools/admin/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "core/check_save.h"
#include "core/checkpoint_store.h"
#include "core/convert/converted_state.h"
#include "core/interop/dcp/dcp_checkpoint.h"
#include "core/interop/model_directory/model_directory.h"
#include "core/interop/safetensors/safetensors_file.h"
#include "core/interop/torch/imported_state.h"
#include "core/interop/torch/torch_file.h"
#include "tools/admin/import_sources.h"
#include "tools/common/address.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;

/// Returns whether the first bytes are those of a file of torch.save, of any version.
bool LooksLikeTorchFile(const std::string& path) {
  std::error_code ignored;  // reading a pipe would wait for its writer
  if (!fs::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string begin(4, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  // A zip archive, or before torch 1.6 a pickle. Read as the length of a safetensors header, the
  // first bytes of the pickle would exceed the limit of that format.
  return begin == "PK\x03\x04" || begin == "\x80\x02\x8a\n";
}

/// What was read. `state` has views of the memory of `model`, `imported` and `safetensors`.
struct Input {
  core::ModelDirectory model;
  std::vector<core::ImportedState> imported;
  std::vector<core::SafetensorsFile> safetensors;
  core::StateDict state;
  std::shared_ptr<void> scratch;  // of converted tensors; shared with nobody
  std::set<std::string> metadata_left_out;
};

Result<core::StateDict> ReadSafetensors(const std::string& path, Input& input) {
  CAIRN_TRY_ASSIGN(core::SafetensorsFile file, core::SafetensorsFile::Open(path));
  for (const auto& [name, value] : file.metadata()) {
    if (name != "format") input.metadata_left_out.insert(name);  // "pt" in nearly every file
  }
  input.safetensors.push_back(std::move(file));
  return core::SafetensorsState({&input.safetensors.back(), 1});
}

Result<core::StateDict> ReadFile(const std::string& path, const core::ImportOptions& how,
                                 Input& input) {
  const bool is_dcp = core::LooksLikeDcpCheckpoint(path);
  std::error_code ignored;
  if (!is_dcp && !LooksLikeTorchFile(path)) {
    auto read = ReadSafetensors(path, input);
    const bool is_unknown = !read && read.error().code == ErrorCode::kDataLoss &&
                            !path.ends_with(".safetensors") && fs::is_regular_file(path, ignored);
    if (!is_unknown) return read;
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .message = "the file is neither a safetensors file nor one of torch.save, "
                                 "which are the files that can be imported",
                      .file = path});
  }
  auto imported = is_dcp ? core::ReadDcpCheckpoint(path, how) : core::ReadTorchFile(path, how);
  if (!imported) {
    Error error = std::move(imported).error();
    const bool can_skip = error.code == ErrorCode::kUnimplemented && !error.key.empty();
    if (can_skip) error.message += "; --skip-unknown leaves it out";
    return Fail(std::move(error));
  }
  core::StateDict state = std::move(imported->state);
  input.imported.push_back(*std::move(imported));
  return state;
}

Result<void> CheckPromised(const ImportSources& sources, const core::StateDict& state) {
  if (sources.promised.empty()) return {};
  std::map<std::string, std::string> missing = sources.promised;
  CAIRN_TRY_ASSIGN(const std::vector<core::Leaf> leaves, core::FlattenTree(state.tree));
  for (const core::Leaf& leaf : leaves) missing.erase(leaf.fqn);
  if (missing.empty()) return {};
  const auto& [tensor, index] = *missing.begin();
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = "the index names a tensor that is in no shard",
                    .key = tensor,
                    .file = index});
}

Result<void> ConvertInput(const ConversionOptions& options, Input& input) {
  CAIRN_TRY_ASSIGN(const auto requested, ParseConversion(options));
  if (!requested) return {};
  CAIRN_TRY_ASSIGN(core::ConvertedState made,
                   core::ConvertedState::Make(input.state, requested->rules, requested->casts));
  input.state = std::move(made.state);
  input.scratch = std::move(made.scratch);
  return {};
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

Result<Input> ReadInput(const ImportOptions& options, const core::Progress& progress) {
  if (options.format == "hf") return ReadModel(options);
  CAIRN_TRY_ASSIGN(const ImportSources sources, FindImportSources(options.files));
  const core::ImportOptions how{.skip_unknown = options.skip_unknown, .progress = progress};
  Input input;
  std::vector<core::StateDict> states;
  for (const std::string& path : sources.files) {
    CAIRN_TRY_ASSIGN(core::StateDict state, ReadFile(path, how, input));
    states.push_back(std::move(state));
  }
  CAIRN_TRY_ASSIGN(input.state, core::JoinStates(std::move(states), {}));
  CAIRN_TRY(CheckPromised(sources, input.state));
  if (options.prefix.empty()) return input;
  std::vector<core::StateDict> joined;
  joined.push_back(std::move(input.state));
  CAIRN_TRY_ASSIGN(input.state, core::JoinStates(std::move(joined), options.prefix));
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

/// Prints a warning for everything that was left out or not checked.
void WarnLeftOut(const Input& input) {
  std::vector<std::string> left_out;
  std::vector<std::string> unchecked;
  for (const std::string& file : input.model.left_out) {
    left_out.push_back(fmt::format("left out: {}", EscapeText(file)));
  }
  size_t tensors = 0;
  for (const core::ImportedState& imported : input.imported) {
    for (const auto& [key, what] : imported.left_out) {
      left_out.push_back(fmt::format("'{}' was left out: {}", EscapeText(key), EscapeText(what)));
    }
    for (const std::string& file : imported.unchecked) {
      unchecked.push_back(
          fmt::format("'{}' has no checksums: its bytes were not checked", EscapeText(file)));
    }
    for (const auto& attribute : imported.attributes) tensors += attribute.what == "tensor" ? 1 : 0;
  }
  WarnEach(left_out);
  WarnEach(unchecked);
  if (tensors > 0) {
    Warn("kv-admin",
         fmt::format("Python attributes of {} were left out", Plural(tensors, "tensor")));
  }
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

}  // namespace

Result<void> AdminImport(const ImportOptions& options, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(options.store));
  if (address.step) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("write the step as --step {}, not after the store", *address.step));
  }
  // What is refused must not create an empty store, so the input is read and checked first.
  ProgressLine checking("checking");
  CAIRN_TRY_ASSIGN(Input input, ReadInput(options, checking.callback()));
  checking.Clear();
  CAIRN_TRY(ConvertInput(options.conversion, input));
  ProgressLine progress("importing");
  const core::SaveOptions save{.overwrite = options.overwrite,
                               .base_step = options.base_step,
                               .tags = options.tags,
                               .progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
                                 for (const auto& imported : input.imported) {
                                   imported.ReleasePages();
                                 }
                                 return progress.Update(done_bytes, total_bytes);
                               }};
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
