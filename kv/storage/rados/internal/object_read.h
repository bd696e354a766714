#pragma once
/// Reads of ranges of objects, from the head or from stripes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "kv/base/error.h"
#include "kv/storage/rados/internal/rados_session.h"
#include "kv/storage/rados/internal/stripe_layout.h"

namespace cairn::kv::internal {

using RadosDone = std::move_only_function<void(Result<void>)>;

struct ObjectHead {
  uint64_t size_bytes = 0;
  uint64_t read_bytes = 0;  // number of the requested bytes, if the head contains the bytes
  std::optional<StripeLayout> layout;
};
/// Reads the head, and the first bytes of the object if it contains them. kNotFound: there is none.
Result<ObjectHead> ReadHead(RadosSession& session, std::string_view name,
                            std::span<std::byte> target);

/// Begins to fill `target` from `offset_bytes` of the object on. Waits for nothing. `done` runs
/// once, on any thread, which it must not block. kNotFound: there is no such object. kDataLoss: it
/// ends before the range does. Ownership: `session` and `target` outlive the call of `done`.
void StartRead(RadosSession& session, std::string_view name, uint64_t offset_bytes,
               std::span<std::byte> target, RadosDone done);
/// Does the same, and waits.
Result<void> ReadRangeOf(RadosSession& session, std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target);

}  // namespace cairn::kv::internal
