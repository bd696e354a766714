// `kv-admin import`: a new step from checkpoints of other programs, each known by what it holds.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/checkpoint_store.h"
#include "core/interop/dcp/dcp_checkpoint.h"
#include "core/interop/torch/imported_state.h"
#include "core/interop/safetensors/safetensors.h"
#include "core/interop/torch/torch_file.h"
#include "tools/common/address.h"
#include "tools/admin/verbs.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"

namespace cairn::tools::internal {
namespace {

namespace fs = std::filesystem;

/// Far above the index of any model; a larger file is something else.
constexpr uint64_t kMostIndexBytes = 1 << 30;

/// The files to read, each once, and what an index promised of them.
struct Sources {
  std::vector<std::string> files;
  std::set<fs::path> seen;
  std::map<std::string, std::string> promised;  // tensor -> index file that names it

  void Add(const fs::path& path) {
    std::error_code error;  // a path that cannot be resolved is opened as it is, and refused there
    const fs::path canonical = fs::weakly_canonical(path, error);
    if (seen.insert(error ? path : canonical).second) files.push_back(path.string());
  }
};

std::unexpected<Error> BadIndex(const std::string& path, std::string_view why) {
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = fmt::format("no index of shards: {}", why),
                    .file = path});
}

/// `{"weight_map": {"tensor": "model-00001-of-00002.safetensors", ...}}`
Result<void> AddIndex(const std::string& path, Sources& sources) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) return Fail(SystemError(error.value(), "reading the index", path));
  if (bytes > kMostIndexBytes) return BadIndex(path, "it is too large");
  std::ifstream file(path);
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return BadIndex(path, "it is not JSON");
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return BadIndex(path, "it has no weight_map");
  }
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    if (!shard.is_string()) return BadIndex(path, "a name in weight_map is no text");
    const fs::path name(shard.get<std::string>());
    // Only neighbours: an index from elsewhere must not pick files of this machine.
    if (name.empty() || name != name.filename() || name == "..") {
      return BadIndex(path, fmt::format("'{}' is no file beside it", name.string()));
    }
    sources.promised[tensor] = path;
    sources.Add(fs::path(path).parent_path() / name);
  }
  return {};
}

Result<Sources> FindSources(const std::vector<std::string>& files) {
  Sources sources;
  for (const std::string& file : files) {
    std::error_code ignored;  // the open says what is wrong with a path
    if (fs::is_directory(file, ignored) && !core::LooksLikeDcpCheckpoint(file)) {
      return Fail(
          Error{.code = ErrorCode::kInvalidArgument,
                .message = "a directory without a .metadata; give its *.safetensors or *.bin files "
                           "or their *.index.json",
                .file = file});
    }
    if (file.ends_with(".json")) {
      CAIRN_TRY(AddIndex(file, sources));
    } else {
      sources.Add(file);
    }
  }
  return sources;
}

/// True for what torch.save writes, now and long ago; told by the first bytes.
bool LooksLikeTorchFile(const std::string& path) {
  std::error_code ignored;  // reading a pipe would wait for its writer
  if (!fs::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string begin(4, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  // A zip archive; or a pickle, which before torch 1.6 was all there was. A safetensors header of
  // the length that the latter spells would be beyond the format's bound.
  return begin == "PK\x03\x04" || begin == "\x80\x02\x8a\n";
}

/// What was read: views of `imported` and `safetensors` stand in `state`.
struct Input {
  std::vector<core::ImportedState> imported;
  std::vector<core::SafetensorsFile> safetensors;
  core::StateDict state;
  std::set<std::string> metadata_left_out;
};

Result<core::StateDict> ReadSafetensors(const std::string& path, Input& input) {
  CAIRN_TRY_ASSIGN(core::SafetensorsFile file, core::SafetensorsFile::Open(path));
  for (const auto& [name, value] : file.metadata()) {
    if (name != "format") input.metadata_left_out.insert(name);  // "pt" for nearly every file
  }
  input.safetensors.push_back(std::move(file));
  return core::SafetensorsState({&input.safetensors.back(), 1});
}

Result<core::StateDict> ReadFile(const std::string& path, const core::ImportOptions& how,
                                 Input& input) {
  const bool is_dcp = core::LooksLikeDcpCheckpoint(path);
  if (!is_dcp && !LooksLikeTorchFile(path)) return ReadSafetensors(path, input);
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

Result<void> CheckPromised(const Sources& sources, const core::StateDict& state) {
  if (sources.promised.empty()) return {};
  std::map<std::string, std::string> missing = sources.promised;
  CAIRN_TRY_ASSIGN(const std::vector<core::Leaf> leaves, core::FlattenTree(state.tree));
  for (const core::Leaf& leaf : leaves) missing.erase(leaf.fqn);
  if (missing.empty()) return {};
  const auto& [tensor, index] = *missing.begin();
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = "the index names a tensor that no shard holds",
                    .key = tensor,
                    .file = index});
}

Result<Input> ReadInput(const ImportOptions& options, const core::Progress& progress) {
  CAIRN_TRY_ASSIGN(const Sources sources, FindSources(options.files));
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

/// Of very many warnings the first tell enough.
void WarnEach(const std::vector<std::string>& texts) {
  constexpr size_t kMostLines = 20;
  for (size_t i = 0; i < std::min(texts.size(), kMostLines); ++i) Warn("kv-admin", texts[i]);
  if (texts.size() > kMostLines) {
    Warn("kv-admin", fmt::format("and {} more like it", GroupedCount(texts.size() - kMostLines)));
  }
}

/// Nothing is left out in silence.
void WarnLeftOut(const Input& input) {
  std::vector<std::string> left_out;
  std::vector<std::string> unchecked;
  size_t tensors = 0;
  for (const core::ImportedState& imported : input.imported) {
    for (const auto& [key, what] : imported.left_out) {
      left_out.push_back(fmt::format("'{}' was left out: {}", EscapeText(key), EscapeText(what)));
    }
    for (const std::string& file : imported.unchecked) {
      unchecked.push_back(
          fmt::format("'{}' has no checksums: its bytes were taken as they are", EscapeText(file)));
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
    out.WriteLine(fmt::format("{} of {} chunks were there already; {} written",
                              GroupedCount(report.chunks_reused), GroupedCount(report.chunks),
                              HumanBytes(report.written_bytes)));
  }
}

}  // namespace

Result<void> AdminImport(const ImportOptions& options, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(options.store));
  if (address.step) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("write the step as --step {}, not behind the store", *address.step));
  }
  // The input first: a file that cannot be read must not leave an empty store behind.
  ProgressLine checking("checking");
  CAIRN_TRY_ASSIGN(const Input input, ReadInput(options, checking.callback()));
  checking.Clear();
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kWrite));
  ProgressLine progress("importing");
  const core::SaveOptions save{.overwrite = options.overwrite,
                               .base_step = options.base_step,
                               .progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
                                 for (const auto& imported : input.imported) {
                                   imported.ReleasePages();
                                 }
                                 return progress.Update(done_bytes, total_bytes);
                               }};
  CAIRN_TRY_ASSIGN(const core::SaveReport report, store->Save(options.step, input.state, save));
  CAIRN_TRY(store->Close());
  progress.Clear();
  PrintReport(report, input.state, out);
  WarnLeftOut(input);
  return {};
}

}  // namespace cairn::tools::internal
