#pragma once
/// The rules that change shapes: what they do to the maps of one tensor.
///
/// All functions return kInvalidArgument, which names the rule, the key and its shape, if the
/// tensor does not fit the rule.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/convert/converted_key.h"
#include "core/convert/internal/rule.h"

namespace cairn::core::internal {

/// Appends one key per name, each a range of the dimension.
Result<void> Split(const Rule& rule, ConvertedKey key, const std::vector<std::string>& names,
                   std::vector<ConvertedKey>& out);

/// Appends one key per index of the dimension, which the keys do not have. `name` has {i} in place
/// of the index.
Result<void> Unstack(const Rule& rule, ConvertedKey key, const std::string& name,
                     std::vector<ConvertedKey>& out);

/// Returns the parts one after the other in a dimension that they have (Concat), or in a new one
/// (Stack). Requires at least one part.
Result<ConvertedKey> Concat(const Rule& rule, std::vector<ConvertedKey> parts, std::string name);
Result<ConvertedKey> Stack(const Rule& rule, std::vector<ConvertedKey> parts, std::string name);

/// Changes the order of the dimensions.
Result<void> Permute(const Rule& rule, ConvertedKey& key);

/// Divides one dimension into factors, changes their order, and merges them again.
Result<void> Rearrange(const Rule& rule, ConvertedKey& key);

/// Checks that `scale` has one float32 element per block of `weight`, a matrix of 8-bit floats, and
/// that no rule has changed their shapes.
Result<void> CheckScale(const Rule& rule, const ConvertedKey& weight, const ConvertedKey& scale,
                        std::span<const SourceKey> sources);

/// Returns a decimal number without leading zeros; nothing for any other text.
std::optional<uint64_t> ParsePosition(std::string_view digits);

}  // namespace cairn::core::internal
