#include "core/interop/model_directory/model_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace cairn::core {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxNameBytes = 1000;
constexpr size_t kMaxPartBytes = 200;  // below the limit of file systems, 255, with ".PID.tmp"

std::unexpected<Error> Damaged(std::string_view why) {
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = fmt::format("not a description of weights: {}", why),
                    .key = std::string(kModelWeightsKey)});
}

Result<ModelWeights> DecodeOne(const std::string& stem, const Json& json) {
  ModelWeights weights{.stem = stem, .prefix = "", .metadata = {}};
  if (!IsModelFileName(stem)) return Damaged(fmt::format("'{}' is not a path inside it", stem));
  if (!json.is_object() || !json.contains("prefix") || !json["prefix"].is_string() ||
      !json.contains("metadata") || !json["metadata"].is_object()) {
    return Damaged(fmt::format("'{}' has no prefix or no metadata", stem));
  }
  weights.prefix = json["prefix"].get<std::string>();
  for (const auto& [name, text] : json["metadata"].items()) {
    if (!text.is_string()) return Damaged(fmt::format("'{}' has metadata that is no text", stem));
    weights.metadata[name] = text.get<std::string>();
  }
  return weights;
}

}  // namespace

bool IsModelFileName(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes) return false;
  if (std::ranges::any_of(name, [](char c) { return static_cast<unsigned char>(c) < ' '; })) {
    return false;
  }
  while (true) {
    const std::string_view part = name.substr(0, name.find('/'));
    if (part.empty() || part.starts_with('.') || part.size() > kMaxPartBytes) return false;
    if (part.size() == name.size()) return true;
    name.remove_prefix(part.size() + 1);
  }
}

bool IsBelowKey(std::string_view fqn, std::string_view key) {
  return fqn.starts_with(key) && (fqn.size() == key.size() || fqn[key.size()] == '.');
}

const ModelWeights* FindModelWeights(std::span<const ModelWeights> weights, std::string_view fqn) {
  if (IsBelowKey(fqn, kModelFilesKey) || IsBelowKey(fqn, kModelWeightsKey)) return nullptr;
  const ModelWeights* found = nullptr;
  for (const ModelWeights& one : weights) {
    const std::string prefix = one.fqn_prefix();
    const bool matches = fqn.size() > prefix.size() && fqn.starts_with(prefix);
    if (matches && (found == nullptr || prefix.size() > found->fqn_prefix().size())) found = &one;
  }
  return found;
}

Result<std::string> EncodeModelWeights(std::span<const ModelWeights> weights) {
  Json json = Json::object();
  for (const ModelWeights& one : weights) {
    json[one.stem] = {{"prefix", one.prefix}, {"metadata", one.metadata}};
  }
  try {
    return json.dump(-1, ' ', false, Json::error_handler_t::strict);
  } catch (const Json::exception&) {
    return Fail(ErrorCode::kInvalidArgument, "a name of weights is not valid UTF-8");
  }
}

Result<std::vector<ModelWeights>> DecodeModelWeights(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) return Damaged("it is not a JSON object");
  std::vector<ModelWeights> weights;
  std::set<std::string> prefixes;
  for (const auto& [stem, description] : json.items()) {
    CAIRN_TRY_ASSIGN(ModelWeights one, DecodeOne(stem, description));
    if (!prefixes.insert(one.prefix).second) return Damaged("two weights have the same prefix");
    weights.push_back(std::move(one));
  }
  return weights;
}

}  // namespace cairn::core
