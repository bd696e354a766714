// Opening together: rank 0 opens, and draws the session; then the others join; then all vote.

#include "core/internal/open_together.h"

#include "core/internal/vote.h"

namespace cairn::core::internal {

Result<std::unique_ptr<kv::Store>> OpenTogether(
    const std::function<Result<std::string>()>& directory, kv::OpenMode mode,
    Communicator& communicator, kv::StoreOptions options) {
  const auto open = [&](kv::OpenMode own_mode) -> Result<std::unique_ptr<kv::Store>> {
    CAIRN_TRY_ASSIGN(const std::string path, directory());
    return kv::Store::Open(path, own_mode, options);
  };
  Result<std::unique_ptr<kv::Store>> store = nullptr;
  if (mode != kv::OpenMode::kWrite) {
    store = open(mode);
  } else {
    if (communicator.rank() == 0) store = open(kv::OpenMode::kWrite);
    Result<std::string> session = "";
    if (!store) session = std::unexpected(store.error());
    if (store && *store != nullptr) session = (*store)->session();
    CAIRN_TRY_ASSIGN(options.session, VoteAndTell(communicator, session));
    if (communicator.rank() > 0) store = open(kv::OpenMode::kJoin);
  }
  CAIRN_TRY(
      Vote(communicator, store ? Result<void>() : Result<void>(std::unexpected(store.error()))));
  return store;
}

}  // namespace cairn::core::internal
