// The files that one import reads.

#include "tools/admin/import_sources.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "core/interop/safetensors/safetensors_format.h"
#include "tools/admin/torch_files.h"

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;

class SourceList {
 public:
  /// Adds a file unless it is already in the list.
  void Add(const fs::path& path) {
    std::error_code error;  // a path that cannot be resolved is kept, and opening it will fail
    const fs::path canonical = fs::weakly_canonical(path, error);
    if (seen_.insert(error ? path : canonical).second) sources_.files.push_back(path.string());
  }
  void AddIndex(const std::string& path) { sources_.indexes.push_back(path); }
  void Promise(const std::string& tensor, const std::string& index) {
    sources_.promised[tensor] = index;
  }
  ImportSources Take() { return std::move(sources_); }

 private:
  ImportSources sources_;
  std::set<fs::path> seen_;
};

Result<void> AddIndex(const std::string& path, SourceList& sources) {
  CAIRN_TRY_ASSIGN(const auto shards, core::ReadShardIndex(path));
  sources.AddIndex(path);
  for (const auto& [tensor, shard] : shards) {
    sources.Promise(tensor, path);
    sources.Add(fs::path(path).parent_path() / shard);
  }
  return {};
}

}  // namespace

Result<ImportSources> FindImportSources(const std::vector<std::string>& names) {
  SourceList sources;
  for (const std::string& name : names) {
    std::error_code ignored;  // the open reports what is wrong with a path
    if (fs::is_directory(name, ignored) && !LooksLikeDcpCheckpoint(name)) {
      return Fail(Error{.code = ErrorCode::kInvalidArgument,
                        .message =
                            "a directory without .metadata; name its *.safetensors or *.bin files "
                            "or their *.index.json, or add --format hf to import a model",
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
