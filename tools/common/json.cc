// JSON documents on standard output: complete ones, and ones with a list that is too long to hold
// in memory.

#include "tools/common/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tools/common/text.h"

namespace cairn::tools {
namespace {

using Value = nlohmann::ordered_json;

std::string Dump(const Value& value, int indent) {
  return value.dump(indent, ' ', false, Value::error_handler_t::replace);
}

std::unique_ptr<Value> New(Value value) { return std::make_unique<Value>(std::move(value)); }

}  // namespace

Json::Json(std::nullptr_t) : value_(New(nullptr)) {}
Json::Json(int64_t value) : value_(New(value)) {}
Json::Json(uint64_t value) : value_(New(value)) {}
Json::Json(double value) : value_(New(value)) {}
Json::Json(std::string text) : value_(New(std::move(text))) {}
Json::Json(const std::vector<uint64_t>& list) : value_(New(list)) {}
Json::Json(std::initializer_list<JsonMember> members) : Json(Object()) {
  for (const JsonMember& member : members) Set(member.name, std::move(member.value));
}
Json::Json(nlohmann::ordered_json value) : value_(New(std::move(value))) {}
Json::Json(const Json& other) : value_(New(*other.value_)) {}
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) { return *this = Json(other); }
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

Json Json::FromBool(bool value) { return Json(Value(value)); }
Json Json::List() { return Json(Value::array()); }
Json Json::Object() { return Json(Value::object()); }

Json Json::Parse(std::string_view text) {
  Value value = Value::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(nullptr) : Json(std::move(value));
}

void Json::Set(std::string_view name, Json value) {
  CAIRN_CHECK(value_->is_object());
  (*value_)[std::string(name)] = std::move(*value.value_);
}

void Json::Merge(const Json& members) {
  CAIRN_CHECK(value_->is_object() && members.value_->is_object());
  value_->update(*members.value_);
}

void Json::Append(Json element) {
  CAIRN_CHECK(value_->is_array());
  value_->push_back(std::move(*element.value_));
}

std::string Json::Line() const { return Dump(*value_, -1); }
std::string Json::Indented() const { return Dump(*value_, 2); }
std::string Json::Text() const { return value_->is_string() ? value_->get<std::string>() : Line(); }

std::optional<double> FindJsonNumber(std::string_view text, const std::string& pointer) {
  const Value document = Value::parse(text, nullptr, /*allow_exceptions=*/false);
  const Value::json_pointer place(pointer);
  if (document.is_discarded() || !document.contains(place)) return std::nullopt;
  const Value& found = document.at(place);
  if (!found.is_number()) return std::nullopt;
  return found.get<double>();
}

void WriteJson(Output& out, const Json& document) { out.WriteLine(document.Indented()); }

Json ErrorJson(const Error& error) {
  Json json = {{"code", ErrorCodeName(error.code)}, {"message", JsonText(error.message)}};
  if (!error.key.empty()) json.Set("key", JsonText(error.key));
  if (error.step) json.Set("step", *error.step);
  if (!error.file.empty()) json.Set("file", JsonText(error.file));
  if (error.offset_bytes) json.Set("offset_bytes", *error.offset_bytes);
  return json;
}

JsonList::JsonList(Output* out, const std::vector<JsonMember>& head, std::string_view name)
    : out_(out) {
  std::string begin = "{";
  for (const JsonMember& member : head) {
    begin += fmt::format("{}: {}, ", Json(member.name).Line(), member.value.Line());
  }
  out_->Write(fmt::format("{}{}: [", begin, Json(name).Line()));
}

void JsonList::Add(const Json& row) {
  out_->Write(empty_ ? "\n" : ",\n");
  out_->Write(row.Line());
  empty_ = false;
}

void JsonList::Finish(const std::vector<JsonMember>& tail) {
  std::string end = empty_ ? "]" : "\n]";
  for (const JsonMember& member : tail) {
    end += fmt::format(", {}: {}", Json(member.name).Line(), member.value.Line());
  }
  out_->WriteLine(end + "}");
}

void JsonList::Abandon(const Error& error) {
  out_->WriteLine(fmt::format("\n], \"error\": {}}}", ErrorJson(error).Line()));
}

}  // namespace cairn::tools
