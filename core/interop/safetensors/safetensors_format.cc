#include "core/interop/safetensors/safetensors_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace cairn::core {

namespace {

namespace fs = std::filesystem;

/// Far more than the index of any model; a larger file is not an index.
constexpr uint64_t kMaxIndexBytes = 1 << 30;

std::unexpected<Error> BadIndex(const std::string& path, std::string_view why) {
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .hint = Hint::kFetchFile,
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

namespace {

struct Name {
  std::string_view name;
  DType dtype;
};
constexpr std::array kNames = {
    Name{"BOOL", DType::kBool},
    Name{"U8", DType::kUInt8},
    Name{"I8", DType::kInt8},
    Name{"U16", DType::kUInt16},
    Name{"I16", DType::kInt16},
    Name{"U32", DType::kUInt32},
    Name{"I32", DType::kInt32},
    Name{"U64", DType::kUInt64},
    Name{"I64", DType::kInt64},
    Name{"F16", DType::kFloat16},
    Name{"BF16", DType::kBFloat16},
    Name{"F32", DType::kFloat32},
    Name{"F64", DType::kFloat64},
    Name{"C64", DType::kComplex64},
    Name{"F8_E4M3", DType::kFloat8E4M3FN},
    Name{"F8_E4M3FNUZ", DType::kFloat8E4M3FNUZ},
    Name{"F8_E5M2", DType::kFloat8E5M2},
    Name{"F8_E5M2FNUZ", DType::kFloat8E5M2FNUZ},
    Name{"F8_E8M0", DType::kFloat8E8M0FNU},
    Name{"F4", DType::kFloat4E2M1FNx2},
};

}  // namespace

std::optional<std::string_view> SafetensorsName(DType dtype) {
  const auto* found = std::ranges::find(kNames, dtype, &Name::dtype);
  if (found == kNames.end()) return std::nullopt;
  return found->name;
}

Result<void> CheckSafetensorsDType(const std::string& fqn, DType dtype) {
  if (SafetensorsName(dtype)) return {};
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = fmt::format("safetensors files cannot hold {}; leave the key out "
                                           "with a pattern",
                                           schema::DTypeName(dtype)),
                    .key = fqn});
}

std::optional<DType> FindSafetensorsDType(std::string_view name) {
  const auto* found = std::ranges::find(kNames, name, &Name::name);
  if (found == kNames.end()) return std::nullopt;
  return found->dtype;
}

}  // namespace cairn::core
