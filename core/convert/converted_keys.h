#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Applies rules to the keys of a checkpoint: which tensors result, and which elements of which
/// stored tensors each of them consists of.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/convert/conversion_rules.h"
#include "core/convert/converted_key.h"

namespace cairn::core {

/// Casts after all rules.
struct KeyCasts {
  std::optional<DType> floats;          // of every floating-point tensor that is not in `by_key`
  std::map<std::string, DType> by_key;  // of these tensors, by their new names
};

/// Returns the keys after `rules` and `casts`, in the order of their first sources.
///
/// kInvalidArgument, naming the rule, the key and shapes where they apply: two tensors would have
/// the same name; a key matches several expressions of one rename; shapes or dtypes do not fit the
/// rule; parts of a concatenation or stack are missing; or a rule other than a rename or drop
/// matches a plain value. Requires names that differ. Cost: linear in keys times rules.
Result<std::vector<ConvertedKey>> ConvertKeys(std::span<const SourceKey> sources,
                                              const ConversionRules& rules,
                                              const KeyCasts& casts = {});

/// Returns true for the dtypes from which core/tensor/element_cast.h casts.
bool IsCastable(DType dtype);

}  // namespace cairn::core
