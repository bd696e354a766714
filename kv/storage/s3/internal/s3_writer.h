#pragma once
/// Objects that are written in pieces of any length.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/storage/s3/internal/s3_client.h"
#include "kv/storage/s3/internal/s3_queue.h"
#include "kv/storage/s3/internal/s3_upload.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Collects parts, and uploads at most four at a time. Ownership: `client` outlives it.
class S3Writer final : public ObjectWriter {
 public:
  S3Writer(S3Client& client, S3Object object);

  Result<void> Append(std::span<const std::byte> bytes) override;
  Result<void> Finish() override;

 private:
  /// Begins to upload the part that has been collected.
  Result<void> SubmitPart();
  /// Waits until at most `count` parts are in flight.
  Result<void> WaitUntil(uint32_t count);

  const uint64_t part_bytes_;
  S3Upload upload_;
  std::vector<std::vector<std::byte>> buffers_;  // buffers of the parts in flight, by tag
  S3Queue queue_;  // after the buffers and the upload, which its requests use
  std::vector<std::byte> part_;
  uint64_t submitted_bytes_ = 0;
  std::optional<Error> error_;  // error of a part, after which nothing else is uploaded
};

}  // namespace cairn::kv::internal
