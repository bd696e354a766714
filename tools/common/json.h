#pragma once
/// JSON documents on standard output: whole ones, and ones with a list that is too long to hold.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kv/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools::internal {

/// Keeps members in the order in which they were added.
using Json = nlohmann::ordered_json;

/// Writes `document` and a line end. Strings in it must be UTF-8 (JsonText).
void WriteJson(Output& out, const Json& document);

/// What went wrong, with the places that are known.
Json ErrorJson(const Error& error);

/// One document with a long list as its last member, written row by row:
///   {"store": "runs/gpt", "step": 100, "keys": [
///   {...},
///   {...}
///   ]}
class JsonList {
 public:
  /// Writes the members of `head` (an object) and begins the list `name`.
  JsonList(Output* out, const Json& head, std::string_view name);
  void Add(const Json& row);
  /// Ends list and document.
  void Finish();
  /// Ends them with a member "error", so that the document is whole though the list is not.
  void Abandon(const Error& error);

 private:
  Output* out_;
  bool empty_ = true;
};

}  // namespace cairn::tools::internal
