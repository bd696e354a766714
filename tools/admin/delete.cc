// `kv-admin delete`: deletes whole steps and nothing else.

#include <fmt/format.h>

#include <chrono>
#include <string>

#include "core/checkpoint_store.h"
#include "kv/base/options.h"
#include "tools/admin/verbs.h"
#include "tools/common/address.h"
#include "tools/common/quantities.h"
#include "tools/common/text.h"

namespace cairn::tools {

Result<void> AdminDelete(const DeleteOptions& options, Output& out) {
  CAIRN_TRY_ASSIGN(const Address address, ParseAddress(options.store));
  if (address.step) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("write the steps after the store: kv-admin delete {} {}",
                            ShellWord(address.store), *address.step));
  }
  // A mistyped address must not create an empty store, as an open for writing would.
  CAIRN_TRY(core::CheckpointStore::Open(address.store, kv::OpenMode::kRead));
  kv::StoreOptions open;
  if (options.no_grace) open.grace = std::chrono::milliseconds(0);
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kWrite, open));
  CAIRN_TRY_ASSIGN(const auto report, store->Delete(options.steps, options.dry_run));
  CAIRN_TRY(store->Close());
  const std::string steps = Plural(report.steps, "step");
  const std::string space =
      fmt::format("{} in {}", HumanBytes(report.freed_bytes), Plural(report.segments, "segment"));
  if (options.dry_run) {
    out.WriteLine(fmt::format("would delete {}, freeing {}", steps, space));
  } else if (open.grace == std::chrono::milliseconds(0)) {
    out.WriteLine(fmt::format("deleted {}, freed {}", steps, space));
  } else {
    const auto grace = std::chrono::duration<double>(open.grace);
    out.WriteLine(fmt::format("deleted {}; the next change of the store after {} frees {}", steps,
                              HumanSeconds(grace.count()), space));
  }
  return {};
}

}  // namespace cairn::tools
