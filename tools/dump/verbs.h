#pragma once
/// The verbs of kv-dump. Each prints to `run.out` and returns the exit status, or what went wrong.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint_store.h"
#include "tools/common/address.h"
#include "tools/common/exit_status.h"
#include "tools/common/json.h"
#include "tools/common/terminal.h"

namespace cairn::tools::internal {

/// How a verb was called.
struct DumpRun {
  Output* out = nullptr;
  bool json = false;
};

Result<int> DumpOverview(const DumpRun& run, const std::string& store);
Result<int> DumpSteps(const DumpRun& run, const std::string& store);
Result<int> DumpKeys(const DumpRun& run, const std::string& address,
                     const std::vector<std::string>& patterns);
Result<int> DumpChunks(const DumpRun& run, const std::string& address,
                       const std::vector<std::string>& patterns);
Result<int> DumpSegments(const DumpRun& run, const std::string& store);

struct ShowOptions {
  std::string slice;
  bool all = false;  // print every value, however many
};
Result<int> DumpShow(const DumpRun& run, const std::string& address, const std::string& fqn,
                     const ShowOptions& options);
Result<int> DumpDiff(const DumpRun& run, const std::string& address_a, const std::string& address_b,
                     const std::vector<std::string>& patterns, bool values);
Result<int> DumpVerify(const DumpRun& run, const std::string& address);

/// A store opened for looking, damage tolerated.
struct OpenedStore {
  Address address;
  std::unique_ptr<core::CheckpointStore> store;
};
/// Opens the store of an address and tells of what the open noticed, as warnings.
Result<OpenedStore> OpenToLook(const std::string& address);
/// As OpenToLook, for verbs that take whole stores. kInvalidArgument: the address names a step.
Result<OpenedStore> OpenWholeStore(const std::string& address, std::string_view verb);
/// As OpenToLook but silent: what was noticed is in store->kv().recovery_notes().
Result<OpenedStore> OpenSilently(const std::string& address);
/// The step that the address names, or the latest.
Result<kv::StepInfo> FindStep(const OpenedStore& opened);

Json StepJson(const kv::StepInfo& step);
/// "uint8", or what `kind` a value is: "int", "str", ...
std::string ValueKindName(const core::Value& value);
/// A value as JSON says it: numbers and strings as such; big integers as decimal... see the .cc.
Json ValueJson(const core::Value& value);

}  // namespace cairn::tools::internal
