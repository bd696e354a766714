#pragma once
/// Enumeration of a namespace, and removal of the stripes that no object has.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>

#include "kv/base/error.h"
#include "kv/storage/rados/internal/rados_session.h"

namespace cairn::kv::internal {

/// Calls `visit` with the name of each RADOS object of the namespace. Returns 0, or a negative
/// number of errno; EOVERFLOW or ETIMEDOUT if the enumeration does not end.
int ForEachRadosObject(RadosSession& session, RadosIoContext pool,
                       const std::function<void(std::string_view)>& visit);

/// Removes stripes that no head refers to, of uploads whose last stripe is older than `min_age`.
/// Leaves stripes of objects of `end_epoch` or a later one, and RADOS objects that are not stripes
/// of an object of a store. kUnavailable: the removal takes too long. Makes requests only for
/// stripes that may be such ones, besides the enumeration.
Result<void> RemoveLeftoverStripes(RadosSession& session, uint32_t end_epoch,
                                   std::chrono::seconds min_age);

}  // namespace cairn::kv::internal
