// `kv-admin rebuild-index`: builds an index from the kept manifests, for a store whose index does
// not open.

#include "tools/admin/rebuild_index.h"

#include <fmt/format.h>

#include "kv/store.h"
#include "tools/common/address.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {

Result<void> AdminRebuildIndex(const std::string& store, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(store));
  if (address.step) {
    return Fail(
        ErrorCode::kInvalidArgument,
        "one index covers all steps; write kv-admin rebuild-index " + ShellWord(address.store));
  }
  if (kv::Store::IndexIsWhole(address.store)) {
    return Fail(
        Error{.code = ErrorCode::kFailedPrecondition,
              .message = "the index is intact and has every committed step; nothing to rebuild",
              .file = address.store});
  }
  CAIRN_TRY_ASSIGN(const auto report, kv::Store::RebuildIndex(address.store));
  out.WriteLine(fmt::format("the new index has {}; the old one is kept in {}",
                            Plural(report.steps, "step"), report.old_index));
  for (const Error& lost : report.lost) out.WriteLine("not restored: " + lost.ToString());
  if (report.lost.empty()) return {};
  return Fail(ErrorCode::kDataLoss,
              fmt::format("{} could not be restored; the segments are unchanged",
                          Plural(report.lost.size(), "step")));
}

}  // namespace cairn::tools
