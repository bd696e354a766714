#include "core/interop/safetensors/shard_index.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

namespace cairn::core {
namespace {

namespace fs = std::filesystem;

/// Far more than the index of any model; a larger file is not an index.
constexpr uint64_t kMaxIndexBytes = 1 << 30;

std::unexpected<Error> BadIndex(const std::string& path, std::string_view why) {
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = fmt::format("not an index of shards: {}", why),
                    .file = path});
}

}  // namespace

Result<std::map<std::string, std::string>> ReadShardIndex(const std::string& path) {
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
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    if (!shard.is_string()) return BadIndex(path, "a name in weight_map is not a string");
    const fs::path name(shard.get<std::string>());
    if (name.empty() || name != name.filename() || name == "..") {
      return BadIndex(path, fmt::format("'{}' is not a file next to it", name.string()));
    }
    shards[tensor] = name.string();
  }
  return shards;
}

}  // namespace cairn::core
