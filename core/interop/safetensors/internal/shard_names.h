#pragma once
/// Names of the files of one export or model: NAME.safetensors, or NAME-00001-of-00003.safetensors
/// and so on with NAME.safetensors.index.json. Threads: pure.

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace cairn::core::internal {

inline constexpr std::string_view kSafetensorsSuffix = ".safetensors";
inline constexpr std::string_view kShardIndexSuffix = ".safetensors.index.json";

/// Returns "model" for "model" and for "model-00001-of-00002", which are names without the suffix.
inline std::string_view WithoutShard(std::string_view name) {
  constexpr std::string_view kForm = "-00001-of-00002";
  if (name.size() <= kForm.size()) return name;
  const std::string_view stem = name.substr(0, name.size() - kForm.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool is_shard = std::ranges::equal(name.substr(stem.size()), kForm, [&](char c, char form) {
    return is_digit(form) ? is_digit(c) : c == form;
  });
  return is_shard ? stem : name;
}

}  // namespace cairn::core::internal
