#include "core/interop/safetensors/safetensors_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace cairn::core {

namespace {

namespace fs = std::filesystem;

/// Far more than the index of any model; a larger file is not an index.
constexpr uint64_t kMaxIndexBytes = 1 << 30;

struct WrongKind {
  std::string_view beginning;  // in lower case
  std::string_view what;
};
constexpr std::array kWrongKinds = {
    WrongKind{"version https://git-lfs", "it is a Git LFS pointer, not the file: run git lfs pull"},
    WrongKind{"<!doctype html", "it is an HTML page, not the file: get the file again"},
    WrongKind{"<html", "it is an HTML page, not the file: get the file again"},
    WrongKind{"<?xml",
              "it is an XML document, such as the error of an object store, not the file: "
              "get the file again"},
    WrongKind{"{", "it is a text, such as the error of a server, not the file: get the file again"},
};

std::unexpected<Error> BadIndex(const std::string& path, std::string_view why) {
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .hint = Hint::kFetchFile,
                    .message = fmt::format("not an index of shards: {}", why),
                    .file = path});
}

}  // namespace

std::string DescribeWrongFile(std::string_view head) {
  constexpr size_t kLongestBeginning = 32;
  if (head.size() >= kLongestBeginning && head.find_first_not_of('\0') == std::string_view::npos) {
    return "it begins with zeros, as a file whose download has not ended: get the file again";
  }
  head.remove_prefix(std::min(head.size(), head.find_first_not_of(" \t\r\n\xef\xbb\xbf")));
  std::string text(head.substr(0, kLongestBeginning));
  if (text.contains('\0')) return "";
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const WrongKind& kind : kWrongKinds) {
    if (text.starts_with(kind.beginning)) return std::string(kind.what);
  }
  return "";
}

Result<std::map<std::string, std::string>> ReadShardIndex(const std::string& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) return Fail(SystemError(error.value(), "reading the index", path));
  if (bytes > kMaxIndexBytes) return BadIndex(path, "it is too large");
  std::ifstream file(path);
  const auto json = nlohmann::ordered_json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    std::string head(kWrongFileHeadBytes, '\0');
    file.clear();
    file.seekg(0).read(head.data(), static_cast<std::streamsize>(head.size()));
    head.resize(static_cast<size_t>(file.gcount()));
    const std::string what = DescribeWrongFile(head);
    if (what.empty() || head.starts_with('{')) return BadIndex(path, "it is not JSON");
    return Fail(Error{
        .code = ErrorCode::kInvalidArgument, .hint = Hint::kStated, .message = what, .file = path});
  }
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
