#pragma once
/// Objects that are written in pieces of any length.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/storage/rados/internal/rados_queue.h"
#include "kv/storage/rados/internal/rados_session.h"
#include "kv/storage/rados/internal/rados_upload.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Collects stripes, and writes one while it collects the next. An object of at most one stripe is
/// written as a head, by Finish. Ownership: `session` outlives it.
class RadosWriter final : public ObjectWriter {
 public:
  RadosWriter(RadosSession& session, std::string name, HeadMode mode);

  Result<void> Append(std::span<const std::byte> bytes) override;
  /// kConflict: with HeadMode::kCreate, the object exists.
  Result<void> Finish() override;

 private:
  /// Begins to write the stripe that has been collected.
  Result<void> SubmitStripe();
  Result<void> WaitForStripe();

  RadosSession& session_;
  const std::string name_;
  const HeadMode mode_;
  const uint64_t stripe_bytes_;
  RadosUpload upload_;
  std::vector<std::byte> in_flight_;  // the stripe that is being written
  RadosQueue queue_;                  // after the bytes and the upload, which its requests use
  std::vector<std::byte> stripe_;
  uint64_t submitted_bytes_ = 0;
  std::optional<Error> error_;  // error of a stripe, after which nothing else is written
};

}  // namespace cairn::kv::internal
