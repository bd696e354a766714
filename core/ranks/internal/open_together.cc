// 1. Rank 0 opens the store and broadcasts its UUID and session.
// 2. The others open it and compare the UUIDs.
// 3. All ranks agree on the status.

#include "core/ranks/internal/open_together.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "core/ranks/gather_v.h"
#include "core/ranks/status_agreement.h"
#include "kv/base/options.h"

namespace cairn::core::internal {
namespace {

using Opened = Result<std::unique_ptr<kv::Store>>;

Result<void> CheckSame(const kv::Store& store, std::string_view uuid) {
  if (store.uuid() == uuid) return {};
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = fmt::format("this is store {}, rank 0 has opened store {}; give all "
                                           "ranks the same directory, on a file system that they "
                                           "share",
                                           store.uuid(), uuid),
                    .file = store.directory()});
}

// "<uuid> <session>"; no session for readers.
Result<std::string> Introduce(const Opened& store, kv::OpenMode mode) {
  if (!store) return std::unexpected(store.error());
  std::string words = (*store)->uuid() + " ";
  if (mode != kv::OpenMode::kWrite) return words;
  CAIRN_TRY_ASSIGN(const std::string session, (*store)->OpenSession());
  return words + session;
}

}  // namespace

Result<std::unique_ptr<kv::Store>> OpenTogether(const std::string& address, kv::OpenMode mode,
                                                Communicator& communicator,
                                                kv::StoreOptions options) {
  const auto open = [&](kv::OpenMode own_mode) -> Opened {
    return kv::Store::Open(address, own_mode, options);
  };
  const bool is_first = communicator.rank() == 0;
  Opened store = nullptr;
  Result<std::string> words("");
  if (is_first) {
    store = open(mode);
    words = Introduce(store, mode);
  }
  CAIRN_TRY(AgreeOnStatus(communicator, words));
  CAIRN_TRY_ASSIGN(const ByteVector bytes,
                   BroadcastV(communicator, std::as_bytes(std::span(*words)), 0));
  if (!is_first) {
    const std::string_view introduction(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const size_t space = std::min(introduction.find(' '), introduction.size() - 1);
    options.session = introduction.substr(space + 1);
    store = open(mode == kv::OpenMode::kWrite ? kv::OpenMode::kJoinSession : mode);
    if (store) {
      Result<void> same = CheckSame(**store, introduction.substr(0, space));
      if (!same) store = std::unexpected(std::move(same).error());
    }
  }
  CAIRN_TRY(AgreeOnStatus(communicator, store));
  return store;
}

}  // namespace cairn::core::internal
