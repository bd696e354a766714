#pragma once
/// Writes of heads and stripes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kv/base/error.h"
#include "kv/storage/rados/internal/rados_session.h"
#include "kv/storage/rados/internal/stripe_layout.h"

namespace cairn::kv::internal {

enum class HeadMode {
  kCreate,   // fails with EEXIST if the head exists
  kReplace,  // creates or replaces it
};

// These return 0, or a negative number of errno.

/// Puts a head that contains the bytes of the object.
int PutHead(RadosSession& session, std::string_view name, std::span<const std::byte> bytes,
            HeadMode mode);
/// Puts a head that names stripes.
int PutHead(RadosSession& session, std::string_view name, const StripeLayout& layout,
            HeadMode mode);
int RemoveHead(RadosSession& session, std::string_view name);

/// Begins to write a stripe to the pool of new stripes. `bytes` may be freed when the call returns.
/// `done` runs once, on any thread, which it must not block, with 0 or a negative number of errno.
void StartStripeWrite(RadosSession& session, const std::string& object,
                      std::span<const std::byte> bytes, std::move_only_function<void(int)> done);

/// Removes the first `count` stripes, several at a time. Stripes that are absent are not errors.
Result<void> RemoveStripes(RadosSession& session, std::string_view name, const StripeLayout& layout,
                           uint64_t count);
/// Removes the stripes with these numbers.
Result<void> RemoveStripes(RadosSession& session, std::string_view name, const StripeLayout& layout,
                           std::span<const uint64_t> indices);

}  // namespace cairn::kv::internal
