// `kv-dump fingerprint`: one number for the tensors of a step.

#include "core/inspect/fingerprint.h"

#include "core/state_dict/key_pattern.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/progress.h"
#include "tools/dump/opened_store.h"
#include "tools/dump/verbs.h"

namespace cairn::tools {

Result<int> DumpFingerprint(const DumpRun& run) {
  core::FingerprintOptions options{.under = run.under, .sha256 = run.sha256};
  CAIRN_TRY_ASSIGN(options.patterns, core::KeyPatterns::Parse(run.patterns));
  CAIRN_TRY_ASSIGN(const OpenedStore opened, OpenStore(run.address));
  CAIRN_TRY_ASSIGN(const kv::StepInfo step, FindStep(opened));
  ProgressLine progress("reading");
  options.progress = progress.callback();
  CAIRN_TRY_ASSIGN(const core::Fingerprint found,
                   core::ComputeFingerprint(opened.store->kv(), step, options));
  progress.Clear();
  if (run.json) {
    Json json = {{"store", StoreText(opened)},    {"step", step.step},
                 {"fingerprint", found.text},     {"tensors", found.tensors},
                 {"bytes", found.bytes},          {"values_left_out", found.values},
                 {"read_bytes", found.read_bytes}};
    if (run.list) json["listing"] = found.listing;
    WriteJson(*run.out, json);
  } else if (run.list) {
    run.out->Write(found.listing);
  } else {
    run.out->WriteLine(found.text);
  }
  return kExitSuccess;
}

}  // namespace cairn::tools
