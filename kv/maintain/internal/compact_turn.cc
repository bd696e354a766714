// A flag of the store.

#include "kv/maintain/internal/compact_turn.h"

#include "kv/state/internal/root_change.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

Result<std::unique_ptr<CompactTurn>> CompactTurn::Take(StoreState& state) {
  const auto fail = [&](const char* message) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = message,
                      .file = state.storage->address()});
  };
  if (!state.writable) {
    return fail("the store is open for reading only; open it for writing to compact it");
  }
  CAIRN_TRY(CheckCanCommit(state));
  CAIRN_TRY(CheckStillWriter(state));
  if (state.compacting.exchange(true)) {
    return fail("another compaction of this store is still running; wait for it");
  }
  return std::unique_ptr<CompactTurn>(new CompactTurn(state));
}

}  // namespace cairn::kv::internal
