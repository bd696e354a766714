#pragma once
/// JSON documents on standard output: complete ones, and ones with a list that is too long to hold
/// in memory.

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

/// The number at `pointer` (RFC 6901: "/jobs/0/read/runtime") of a JSON document; nothing if `text`
/// is not JSON or has no number there.
std::optional<double> FindJsonNumber(std::string_view text, const std::string& pointer);

/// Writes `document` with one member or element per line, and a line end.
void WriteJson(Output& out, const Json& document);

/// An error, with the key, step, file and offset that are known.
Json ErrorJson(const Error& error);

/// One document with a long list, written row by row:
///   {"store": "runs/gpt", "step": 100, "keys": [
///   {...},
///   {...}
///   ]}
class JsonList {
 public:
  /// Writes the members of the object `head` and begins the list `name`. `out` must outlive this
  /// object.
  JsonList(Output* out, const Json& head, std::string_view name);
  void Add(const Json& row);
  /// Ends the list and, after the members of the object `tail`, the document.
  void Finish(const Json& tail = Json::object());
  /// Ends both with a member "error", so that the document is valid although the list is not
  /// complete.
  void Abandon(const Error& error);

 private:
  Output* out_;
  bool empty_ = true;
};

}  // namespace cairn::tools

/// A value, or null if there is none.
template <typename Value>
struct nlohmann::adl_serializer<std::optional<Value>> {
  template <typename Json>
  static void to_json(Json& json, const std::optional<Value>& value) {
    json = value ? Json(*value) : Json(nullptr);
  }
};
