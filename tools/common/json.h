#pragma once
/// JSON documents on standard output.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kv/base/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

/// A JSON value whose objects keep their members in the order in which they were added.
using Json = nlohmann::ordered_json;

/// The value on one line. Text that is not UTF-8 is replaced, not refused: a document is printed
/// whatever a damaged store contains.
std::string JsonLine(const Json& value);

/// Writes `document` with one member or element per line, and a line end.
void WriteJson(Output& out, const Json& document);

/// An error, with the key, step, file and offset that are known.
Json ErrorJson(const Error& error);

}  // namespace cairn::tools

/// A value, or null if there is none.
template <typename Value>
struct nlohmann::adl_serializer<std::optional<Value>> {
  template <typename Json>
  static void to_json(Json& json, const std::optional<Value>& value) {
    json = value ? Json(*value) : Json(nullptr);
  }
};
