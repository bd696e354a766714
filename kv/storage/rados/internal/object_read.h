#pragma once
/// Reads of ranges of objects, from the head or from stripes.

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

using RadosDone = std::move_only_function<void(Result<void>)>;

/// One request to a head: its length, its layout, and its bytes from an offset on. Not movable
/// because librados stores the results in it.
class HeadRequest {
 public:
  /// `target` outlives the request.
  HeadRequest(const RadosSession& session, uint64_t offset_bytes, std::span<std::byte> target);
  ~HeadRequest();
  HeadRequest(const HeadRequest&) = delete;
  HeadRequest& operator=(const HeadRequest&) = delete;

  RadosReadOp op() const { return op_; }
  // After it has succeeded:
  uint64_t head_bytes() const { return head_bytes_; }
  uint64_t read_bytes() const { return read_bytes_; }
  /// Returns nothing if the head contains the bytes of the object. May be called once.
  Result<std::optional<StripeLayout>> Layout();

 private:
  const RadosSession& session_;
  const RadosReadOp op_;
  RadosXattrs xattrs_ = nullptr;
  uint64_t head_bytes_ = 0;
  size_t read_bytes_ = 0;
};

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
