#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Finds the name that was probably meant by one that does not exist.

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace cairn::core {

/// Returns the name that differs least from `word`, the first of several such names; nothing if
/// they all differ in more than a third of the characters of `word`, or in more than 4. The word
/// itself is not returned. A difference is a character that is missing, added or another one, or
/// two neighbours that are exchanged (the optimal string alignment distance).
/// Cost: the product of both lengths per name; words and names of more than 256 bytes are not
/// compared. Threads: may run on many threads at once.
std::optional<std::string> FindCloseName(std::string_view word, std::span<const std::string> names);

}  // namespace cairn::core
