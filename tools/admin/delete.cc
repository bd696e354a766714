// `kv-admin delete`: deletes whole steps and nothing else.

#include "tools/admin/delete.h"

#include <fmt/format.h>

#include "core/checkpoint_store.h"
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
  CAIRN_TRY_ASSIGN(const auto store,
                   core::CheckpointStore::Open(address.store, kv::OpenMode::kWrite));
  CAIRN_TRY_ASSIGN(const auto report, store->Delete(options.steps, options.dry_run));
  CAIRN_TRY(store->Close());
  out.WriteLine(fmt::format("{} {}, {} {} in {}", options.dry_run ? "would delete" : "deleted",
                            Plural(report.steps, "step"), options.dry_run ? "freeing" : "freed",
                            HumanBytes(report.freed_bytes), Plural(report.segments, "segment")));
  return {};
}

}  // namespace cairn::tools
