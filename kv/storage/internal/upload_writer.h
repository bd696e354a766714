#pragma once
/// Objects that are written in pieces of any length, to storages that take them in parts.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/base/error.h"
#include "kv/io/io_queue.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Collects parts, and writes as many at a time as `queue` is deep while it collects the next one.
class UploadWriter final : public ObjectWriter {
 public:
  using PutWhole = std::function<Result<void>(std::span<const std::byte> bytes)>;

  /// `upload` gets writes of `part_bytes`. If `put_whole` is set, Finish calls it for an object of
  /// at most one part, and not the upload.
  UploadWriter(std::unique_ptr<Upload> upload, std::unique_ptr<IoQueue> queue, uint64_t part_bytes,
               PutWhole put_whole = nullptr);

  Result<void> Append(std::span<const std::byte> bytes) override;
  Result<void> Finish() override;

 private:
  /// Begins to write the part that has been collected.
  Result<void> SubmitPart();
  /// Waits until at most `count` parts are in flight.
  Result<void> WaitUntil(uint32_t count);

  const uint64_t part_bytes_;
  const PutWhole put_whole_;
  const std::unique_ptr<Upload> upload_;
  std::vector<std::vector<std::byte>> buffers_;  // buffers of the parts in flight, by tag
  const std::unique_ptr<IoQueue> queue_;         // after the buffers and the upload, which it uses
  std::vector<std::byte> part_;
  uint64_t submitted_bytes_ = 0;
  std::optional<Error> error_;  // error of a part, after which nothing else is written
};

}  // namespace cairn::kv::internal
