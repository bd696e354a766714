// The files that one import reads.

#include "tools/admin/import_sources.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/interop/dcp/dcp_checkpoint.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;

/// Far more than the index of any model; a larger file is not an index.
constexpr uint64_t kMaxIndexBytes = 1 << 30;

class SourceList {
 public:
  /// Adds a file unless it is already in the list.
  void Add(const fs::path& path) {
    std::error_code error;  // a path that cannot be resolved is kept, and opening it will fail
    const fs::path canonical = fs::weakly_canonical(path, error);
    if (seen_.insert(error ? path : canonical).second) sources_.files.push_back(path.string());
  }
  void Promise(const std::string& tensor, const std::string& index) {
    sources_.promised[tensor] = index;
  }
  ImportSources Take() { return std::move(sources_); }

 private:
  ImportSources sources_;
  std::set<fs::path> seen_;
};

std::unexpected<Error> BadIndex(const std::string& path, std::string_view why) {
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = fmt::format("not an index of shards: {}", why),
                    .file = path});
}

/// `{"weight_map": {"tensor": "model-00001-of-00002.safetensors", ...}}`
Result<void> AddIndex(const std::string& path, SourceList& sources) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) return Fail(SystemError(error.value(), "reading the index", path));
  if (bytes > kMaxIndexBytes) return BadIndex(path, "it is too large");
  std::ifstream file(path);
  const auto json = nlohmann::ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return BadIndex(path, "it is not JSON");
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return BadIndex(path, "it has no weight_map");
  }
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    if (!shard.is_string()) return BadIndex(path, "a name in weight_map is not a string");
    const fs::path name(shard.get<std::string>());
    // Only files next to the index: one from elsewhere must not select files of this machine.
    if (name.empty() || name != name.filename() || name == "..") {
      return BadIndex(path, fmt::format("'{}' is not a file next to it", name.string()));
    }
    sources.Promise(tensor, path);
    sources.Add(fs::path(path).parent_path() / name);
  }
  return {};
}

}  // namespace

Result<ImportSources> FindImportSources(const std::vector<std::string>& names) {
  SourceList sources;
  for (const std::string& name : names) {
    std::error_code ignored;  // the open reports what is wrong with a path
    if (fs::is_directory(name, ignored) && !core::LooksLikeDcpCheckpoint(name)) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message =
                            "a directory without .metadata; name its *.safetensors or *.bin files "
                            "or their *.index.json",
                        .file = name});
    }
    if (name.ends_with(".json")) {
      CAIRN_TRY(AddIndex(name, sources));
    } else {
      sources.Add(name);
    }
  }
  return sources.Take();
}

}  // namespace cairn::tools
