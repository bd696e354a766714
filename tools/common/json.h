#pragma once
/// JSON documents on standard output: complete ones, and ones with a list that is too long to hold
/// in memory.

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "tools/common/terminal.h"

namespace cairn::tools {

struct JsonMember;

/// A JSON value that is built to be printed. An object keeps its members in the order in which they
/// were added.
///
/// Only json.cc includes all of the library, because that takes seconds to compile.
class Json {
 public:
  // NOLINTBEGIN(google-explicit-constructor): values convert where a member is written.
  Json(std::nullptr_t = nullptr);
  template <std::same_as<bool> Bool>  // not a pointer, which would convert to bool
  Json(Bool value) : Json(FromBool(value)) {}
  Json(int value) : Json(int64_t{value}) {}
  Json(uint32_t value) : Json(uint64_t{value}) {}
  Json(int64_t value);
  Json(uint64_t value);
  Json(double value);
  Json(const char* text) : Json(std::string(text)) {}
  Json(std::string_view text) : Json(std::string(text)) {}
  Json(std::string text);
  Json(const std::vector<uint64_t>& list);
  /// An object: {{"step", 100}, {"ok", true}}. Moves the values out of the list.
  Json(std::initializer_list<JsonMember> members);
  /// The value, or null if there is none.
  template <typename Value>
  Json(const std::optional<Value>& value) : Json(value ? Json(*value) : Json(nullptr)) {}
  // NOLINTEND(google-explicit-constructor)
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  static Json List();
  static Json Object();
  /// The value that `text` spells; null if it is not JSON.
  static Json Parse(std::string_view text);

  /// Adds or replaces a member. Requires an object.
  void Set(std::string_view name, Json value);
  /// Adds or replaces the members of another object. Requires an object.
  void Merge(const Json& members);
  /// Adds an element. Requires a list.
  void Append(Json element);

  /// The value on one line. Text that is not UTF-8 is replaced, not refused: a document is printed
  /// whatever a damaged store contains.
  std::string Line() const;
  /// The value with one member or element per line; otherwise the same as Line.
  std::string Indented() const;
  /// The value without quotes if it is a string, otherwise Line.
  std::string Text() const;

 private:
  static Json FromBool(bool value);
  explicit Json(nlohmann::ordered_json value);

  std::unique_ptr<nlohmann::ordered_json> value_;  // never null, except after a move
};

struct JsonMember {
  std::string_view name;
  mutable Json value;  // so that an object can take it from its initializer list
};

/// The number at `pointer` (RFC 6901: "/jobs/0/read/runtime") of a JSON document; nothing if `text`
/// is not JSON or has no number there.
std::optional<double> FindJsonNumber(std::string_view text, const std::string& pointer);

/// Writes `document` and a line end. Strings in it must be UTF-8 (JsonText).
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
  /// Writes the members of `head` and begins the list `name`. `out` must outlive this object.
  JsonList(Output* out, const std::vector<JsonMember>& head, std::string_view name);
  void Add(const Json& row);
  /// Ends the list and, after the members of `tail`, the document.
  void Finish(const std::vector<JsonMember>& tail = {});
  /// Ends both with a member "error", so that the document is valid although the list is not
  /// complete.
  void Abandon(const Error& error);

 private:
  Output* out_;
  bool empty_ = true;
};

}  // namespace cairn::tools
