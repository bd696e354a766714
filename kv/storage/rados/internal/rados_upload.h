#pragma once
/// Objects in stripes, written by several requests at a time.
///
///   1. StartPart writes each part as one stripe. Nothing refers to the stripes.
///   2. Finish puts the head, which names them. From then on, the object exists.
///
/// If a process dies before 2, RadosStorage::RemoveLeftovers removes the stripes when the last one
/// is older than kMinLeftoverAge. Finish fails if the last part is older than kMaxUploadPause, so
/// that it never refers to stripes that have been removed, as long as the clocks of machines differ
/// by less than the difference of the two.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "kv/base/error.h"
#include "kv/storage/rados/internal/object_write.h"
#include "kv/storage/rados/internal/rados_session.h"
#include "kv/storage/rados/internal/stripe_layout.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

inline constexpr std::chrono::minutes kMaxUploadPause{30};
inline constexpr std::chrono::minutes kMinLeftoverAge{120};

/// Ownership: `session` outlives it.
class RadosUpload final : public Upload {
 public:
  RadosUpload(RadosSession& session, std::string name, uint64_t part_bytes,
              HeadMode mode = HeadMode::kCreate);
  /// Removes the stripes if there was no Finish.
  ~RadosUpload() override;

  /// Begins to write a part. `bytes` must outlive the call of `done`, which runs on any thread.
  void StartPart(std::span<const std::byte> bytes, uint64_t offset_bytes,
                 std::move_only_function<void(Result<void>)> done);
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

}  // namespace cairn::kv::internal
