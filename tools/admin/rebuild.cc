// `kv-admin rebuild-index`: an index made anew from the kept manifests, for one that does not open.

#include <fmt/format.h>

#include "kv/store.h"
#include "tools/common/address.h"
#include "tools/admin/verbs.h"
#include "tools/common/text.h"

namespace cairn::tools::internal {

Result<void> AdminRebuildIndex(const std::string& store, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(store));
  if (address.step) {
    return Fail(ErrorCode::kInvalidArgument,
                "the index is that of all steps: kv-admin rebuild-index " + ShellWord(address.store));
  }
  if (kv::Store::IndexIsWhole(address.store)) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "the index is whole and has every committed step: nothing to rebuild",
                      .file = address.store});
  }
  CAIRN_TRY_ASSIGN(const auto report, kv::Store::RebuildIndex(address.store));
  out.WriteLine(fmt::format("the new index has {}; the old one lies in {}",
                            Plural(report.steps, "step"), report.old_index));
  for (const Error& lost : report.lost) out.WriteLine("not put back: " + lost.ToString());
  if (report.lost.empty()) return {};
  return Fail(ErrorCode::kDataLoss, fmt::format("{} could not be put back; the segments are untouched",
                                                Plural(report.lost.size(), "step")));
}

}  // namespace cairn::tools::internal
