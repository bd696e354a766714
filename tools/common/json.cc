// JSON documents on standard output.

#include "tools/common/json.h"

#include "tools/common/text.h"

namespace cairn::tools {
namespace {

std::string Dump(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string JsonLine(const Json& value) { return Dump(value, -1); }

void WriteJson(Output& out, const Json& document) { out.WriteLine(Dump(document, 2)); }

Json ErrorJson(const Error& error) {
  Json json = {{"code", ErrorCodeName(error.code)}, {"message", JsonText(error.message)}};
  if (!error.key.empty()) json["key"] = JsonText(error.key);
  if (error.step) json["step"] = *error.step;
  if (!error.file.empty()) json["file"] = JsonText(error.file);
  if (error.offset_bytes) json["offset_bytes"] = *error.offset_bytes;
  return json;
}

}  // namespace cairn::tools
