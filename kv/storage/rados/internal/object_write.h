#pragma once
/// Writes of heads and stripes, objects in stripes, and the removal of stripes that no object has.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "kv/base/error.h"
#include "kv/storage/rados/internal/rados_session.h"
#include "kv/storage/rados/internal/stripe_layout.h"
#include "kv/storage/storage.h"

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

inline constexpr std::chrono::minutes kMaxUploadPause{30};
inline constexpr std::chrono::minutes kMinLeftoverAge{120};

/// An object in stripes, written by several requests at a time.
///
///   1. StartWrite writes each part as one stripe. Nothing refers to the stripes.
///   2. Finish puts the head, which names them. From then on, the object exists.
///
/// If a process dies before 2, RadosStorage::RemoveLeftovers removes the stripes when the last one
/// is older than kMinLeftoverAge. Finish fails if the last part is older than kMaxUploadPause, so
/// that it never refers to stripes that have been removed, as long as the clocks of machines differ
/// by less than the difference of the two.
///
/// Ownership: `session` outlives it.
class RadosUpload final : public Upload {
 public:
  RadosUpload(RadosSession& session, std::string name, uint64_t part_bytes,
              HeadMode mode = HeadMode::kCreate);
  /// Removes the stripes if there was no Finish.
  ~RadosUpload() override;

  void StartWrite(std::span<const std::byte> bytes, uint64_t offset_bytes, Done done) override;
  /// kConflict: with HeadMode::kCreate, the object exists.
  Result<void> Finish(uint64_t size_bytes) override;

 private:
  RadosSession& session_;
  const std::string name_;
  const HeadMode mode_;
  StripeLayout layout_;
  uint64_t part_count_ = 0;
  std::chrono::steady_clock::time_point last_part_;
  /// Whether the stripes must stay: the object refers to them, or may do so later.
  bool keeps_stripes_ = false;
};

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
