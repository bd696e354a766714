#include "tools/dump/rows.h"

#include <fmt/format.h>

namespace cairn::tools {

Rows::Rows(const DumpRun& run, std::vector<Column> columns, const Json& head, std::string_view name)
    : out_(run.out), json_(run.json), table_(run.out, std::move(columns)) {
  if (!json_) return;
  out_->Write("{");
  for (const auto& [member, value] : head.items()) {
    out_->Write(fmt::format("{}: {}, ", JsonLine(member), JsonLine(value)));
  }
  out_->Write(fmt::format("{}: [", JsonLine(name)));
}

Result<void> Rows::Finish(Result<void> listed, const Json& tail) {
  if (!json_) {
    table_.Finish();
    return listed;
  }
  out_->Write(is_empty_ ? "]" : "\n]");
  const Json members = listed ? tail : Json{{"error", ErrorJson(listed.error())}};
  for (const auto& [member, value] : members.items()) {
    out_->Write(fmt::format(", {}: {}", JsonLine(member), JsonLine(value)));
  }
  out_->WriteLine("}");
  return listed;
}

}  // namespace cairn::tools
