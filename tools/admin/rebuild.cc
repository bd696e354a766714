// `kv-admin rebuild`: prints what was recovered and what was lost.

#include <fmt/format.h>

#include "kv/store.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {

Result<void> AdminRebuild(const std::string& store, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(store));
  if (address.step) {
    return Fail(ErrorCode::kInvalidArgument,
                "one root covers all steps; write kv-admin rebuild " + ShellWord(address.store));
  }
  auto rebuilt = kv::Store::Rebuild(address.store);
  if (!rebuilt) {
    Error error = std::move(rebuilt).error();
    if (error.code == ErrorCode::kFailedPrecondition) {
      error.message +=
          fmt::format("; kv-dump verify {} checks the payload", ShellWord(address.store));
    }
    return Fail(std::move(error));
  }
  const auto& report = *rebuilt;
  out.WriteLine(fmt::format("the new root names {}", Plural(report.steps, "step")));
  for (const Error& note : report.notes) out.WriteLine("note: " + note.ToString());
  for (const Error& lost : report.lost) out.WriteLine("not recovered: " + lost.ToString());
  if (report.lost.empty()) return {};
  return Fail(
      Error{.code = ErrorCode::kDataLoss,
            .hint = Hint::kStated,
            .message = fmt::format(
                "{} could not be recovered; nothing was removed; kv-admin pull MIRROR {} copies "
                "steps that a mirror has",
                Plural(report.lost.size(), "object or step", "objects or steps"),
                ShellWord(address.store))});
}

}  // namespace cairn::tools
