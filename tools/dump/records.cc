// `kv-dump records`: one row per record of an application.

#include <string>
#include <vector>

#include "tools/common/exit_status.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/rows.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {

Result<int> DumpRecords(const DumpRun& run) {
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(run.address));
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(opened));
  if (!run.second.empty()) {
    CAIRN_TRY_ASSIGN(const auto data, opened.store->ReadRecord(step, run.second));
    run.out->Write({reinterpret_cast<const char*>(data.data()), data.size()});
    return kExitSuccess;
  }
  CAIRN_TRY_ASSIGN(const std::vector<std::string> names, opened.store->ListRecords(step));
  Rows rows(run, {Flexible("NAME"), Right("BYTES")},
            {{"store", StoreText(opened)}, {"step", step.step}}, "records");
  for (const std::string& name : names) {
    CAIRN_TRY_ASSIGN(const auto data, opened.store->ReadRecord(step, name));
    rows.Add([&]() -> std::vector<Cell> { return {EscapeText(name), HumanBytes(data.size())}; },
             [&] { return Json{{"name", JsonText(name)}, {"bytes", data.size()}}; });
  }
  CAIRN_TRY(rows.Finish());
  if (rows.is_empty()) PrintRemark(run, "The step has no records of applications.");
  return kExitSuccess;
}

}  // namespace cairn::tools
