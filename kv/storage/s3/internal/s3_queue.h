#pragma once
/// A queue of reads and of parts of uploads, which the threads of an S3Client transfer.

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string_view>

#include "kv/base/error.h"
#include "kv/io/io_queue.h"
#include "kv/storage/s3/internal/s3_client.h"
#include "kv/storage/s3/internal/s3_upload.h"

namespace cairn::kv::internal {

/// Cancels the reads in flight when it is destroyed. Ownership: `client` outlives it.
class S3Queue final : public IoQueue {
 public:
  /// `object_of` returns the key and the file of the object with a name.
  S3Queue(S3Client& client, std::function<S3Object(std::string_view)> object_of, uint32_t depth);
  ~S3Queue() override;

  /// kFailedPrecondition: this is a forked child.
  Result<void> Submit(const IoRequest& request) override;
  Result<IoCompletion> Wait() override;
  bool HasCompletion() override;
  bool can_scatter() const override { return true; }
  const char* name() const override { return "s3"; }

 private:
  struct Completions;

  void StartRead(const IoRequest& request);
  void StartWrite(const IoRequest& request);

  S3Client& client_;
  const std::function<S3Object(std::string_view)> object_of_;
  std::set<uint64_t> read_ids_;                     // ids of reads that may be in flight
  const std::shared_ptr<Completions> completions_;  // shared with the callbacks
};

}  // namespace cairn::kv::internal
