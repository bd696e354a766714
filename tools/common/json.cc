// JSON documents on standard output: complete ones, and ones with a list that is too long to hold
// in memory.

#include "tools/common/json.h"

#include <fmt/format.h>

#include "tools/common/text.h"

namespace cairn::tools {
namespace {

std::string Dump(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string JsonLine(const Json& value) { return Dump(value, -1); }

std::optional<double> FindJsonNumber(std::string_view text, const std::string& pointer) {
  const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Json::json_pointer place(pointer);
  if (document.is_discarded() || !document.contains(place)) return std::nullopt;
  const Json& found = document.at(place);
  if (!found.is_number()) return std::nullopt;
  return found.get<double>();
}

void WriteJson(Output& out, const Json& document) { out.WriteLine(Dump(document, 2)); }

Json ErrorJson(const Error& error) {
  Json json = {{"code", ErrorCodeName(error.code)}, {"message", JsonText(error.message)}};
  if (!error.key.empty()) json["key"] = JsonText(error.key);
  if (error.step) json["step"] = *error.step;
  if (!error.file.empty()) json["file"] = JsonText(error.file);
  if (error.offset_bytes) json["offset_bytes"] = *error.offset_bytes;
  return json;
}

JsonList::JsonList(Output* out, const Json& head, std::string_view name) : out_(out) {
  std::string begin = "{";
  for (const auto& [member, value] : head.items()) {
    begin += fmt::format("{}: {}, ", JsonLine(member), JsonLine(value));
  }
  out_->Write(fmt::format("{}{}: [", begin, JsonLine(name)));
}

void JsonList::Add(const Json& row) {
  out_->Write(empty_ ? "\n" : ",\n");
  out_->Write(JsonLine(row));
  empty_ = false;
}

void JsonList::Finish(const Json& tail) {
  std::string end = empty_ ? "]" : "\n]";
  for (const auto& [member, value] : tail.items()) {
    end += fmt::format(", {}: {}", JsonLine(member), JsonLine(value));
  }
  out_->WriteLine(end + "}");
}

void JsonList::Abandon(const Error& error) {
  out_->WriteLine(fmt::format("\n], \"error\": {}}}", JsonLine(ErrorJson(error))));
}

}  // namespace cairn::tools
