// `kv-admin import`: a new step from safetensors files.

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/checkpoint_store.h"
#include "core/safetensors.h"
#include "tools/internal/address.h"
#include "tools/internal/admin_verbs.h"
#include "tools/internal/json.h"
#include "tools/internal/progress.h"
#include "tools/internal/text.h"

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
                    .message = fmt::format("no index of safetensors shards: {}", why),
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
    if (fs::is_directory(file, ignored)) {
      return Fail(
          Error{.code = ErrorCode::kInvalidArgument,
                .message = "a directory; give its *.safetensors files or their *.index.json",
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

struct Input {
  std::vector<core::SafetensorsFile> files;
  core::StateDict state;
  uint64_t tensors = 0;
  std::set<std::string> metadata_left_out;
};

Result<Input> ReadInput(const ImportOptions& options) {
  CAIRN_TRY_ASSIGN(Sources sources, FindSources(options.files));
  Input input;
  for (const std::string& path : sources.files) {
    CAIRN_TRY_ASSIGN(core::SafetensorsFile file, core::SafetensorsFile::Open(path));
    input.files.push_back(std::move(file));
  }
  auto root = input.state.root();
  auto target = options.prefix.empty() ? root : root.Map(options.prefix);
  for (const core::SafetensorsFile& file : input.files) {
    for (const auto& [name, value] : file.metadata()) {
      if (name != "format") input.metadata_left_out.insert(name);  // "pt" for nearly every file
    }
    for (const core::SafetensorsTensor& tensor : file.tensors()) {
      target.Tensor(tensor.name, {tensor.dtype, tensor.shape, {}, tensor.bytes.data()});
      sources.promised.erase(tensor.name);
      ++input.tensors;
    }
  }
  if (!sources.promised.empty()) {
    const auto& [tensor, index] = *sources.promised.begin();
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "the index names a tensor that no shard holds",
                      .key = tensor,
                      .file = index});
  }
  return input;
}

void PrintReport(const core::SaveReport& report, uint64_t tensors, Output& out) {
  out.WriteLine(fmt::format("step {}: {}, {}, in {} ({})", report.step, Plural(tensors, "tensor"),
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
  CAIRN_TRY_ASSIGN(const Input input, ReadInput(options));
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kWrite));
  ProgressLine progress("importing");
  const core::SaveOptions save{.overwrite = options.overwrite,
                               .base_step = options.base_step,
                               .progress = progress.callback()};
  CAIRN_TRY_ASSIGN(const core::SaveReport report, store->Save(options.step, input.state, save));
  CAIRN_TRY(store->Close());
  progress.Clear();
  PrintReport(report, input.tensors, out);
  for (const std::string& name : input.metadata_left_out) {
    Warn("kv-admin", fmt::format("the metadata entry '{}' was left out", name));
  }
  return {};
}

}  // namespace cairn::tools::internal
