// JSON documents on standard output: whole ones, and ones with a list that is too long to hold.

#include "tools/common/json.h"

#include <fmt/format.h>

#include "tools/common/text.h"

namespace cairn::tools::internal {
namespace {

std::string Dump(const Json& value, int indent) {
  // "replace" instead of an exception: a document must come out whatever a damaged store holds.
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

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
  for (const auto& [key, value] : head.items()) {
    begin += fmt::format("{}: {}, ", Dump(Json(key), -1), Dump(value, -1));
  }
  out_->Write(fmt::format("{}{}: [", begin, Dump(Json(std::string(name)), -1)));
}

void JsonList::Add(const Json& row) {
  out_->Write(empty_ ? "\n" : ",\n");
  out_->Write(Dump(row, -1));
  empty_ = false;
}

void JsonList::Finish() { out_->WriteLine(empty_ ? "]}" : "\n]}"); }

void JsonList::Abandon(const Error& error) {
  out_->WriteLine(fmt::format("\n], \"error\": {}}}", Dump(ErrorJson(error), -1)));
}

}  // namespace cairn::tools::internal
