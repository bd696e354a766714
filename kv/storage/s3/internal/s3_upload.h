#pragma once
/// Objects that are uploaded in parts.
///
/// Protocol of an Upload:
///   1. The first write waits for CreateMultipartUpload.
///   2. UploadPart, many at once, each from the caller's memory.
///   3. Finish sends CompleteMultipartUpload. If the response is lost, the object's size decides,
///      because nobody else writes an object of this name.
///   4. Without Finish: AbortMultipartUpload. If that is lost too, Storage::RemoveLeftovers repeats
///      it.
/// A first write that is shorter than the others is all of the object. It is complete when it is
/// copied, and Finish sends it as one PUT.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/storage/s3/internal/s3_client.h"
#include "kv/storage/s3/internal/s3_responses.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Returns the request that creates or replaces an object. `bytes` outlive it.
S3Request PutRequest(const S3Settings& settings, std::string_view name,
                     std::span<const std::byte> bytes);

/// Ownership: `client` outlives it.
class S3Upload final : public Upload {
 public:
  /// Writes have `part_bytes`, except for the last one. Requires at least kMinPartBytes.
  S3Upload(S3Client& client, std::string_view name, uint64_t part_bytes);
  ~S3Upload() override;

  void StartWrite(std::span<const std::byte> bytes, uint64_t offset_bytes, Done done) override;
  Result<void> Finish(uint64_t size_bytes) override;

 private:
  /// Begins the upload and returns its id.
  Result<std::string> Create();
  /// Takes note of the response to the request of a part.
  Result<void> AddPart(uint64_t index, std::string digest, const Result<HttpResponse>& response);
  /// Makes one object of all parts.
  Result<void> FinishParts();
  /// Returns whether the object exists with its size.
  bool Exists();

  S3Client& client_;
  const std::string name_;
  const std::string path_;  // for Error::file
  const uint64_t part_bytes_;
  // Only the caller's thread uses these.
  bool is_finished_ = false;
  uint64_t started_bytes_ = 0;     // sum of all writes
  std::vector<std::byte> whole_;   // all of an object that is shorter than a part
  Result<std::string> upload_id_;  // empty before the first part

  Mutex mutex_;
  std::vector<S3Part> parts_ CAIRN_GUARDED_BY(mutex_);
};

/// Aborts an upload.
Result<void> AbortUpload(S3Client& client, std::string_view name, const std::string& upload_id);

}  // namespace cairn::kv::internal
