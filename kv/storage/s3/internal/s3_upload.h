#pragma once
/// Objects that are uploaded in parts.
///
/// Protocol of an Upload:
///   1. Writes that are shorter than the parts that S3 allows are gathered: several make one part,
///      in memory of the upload. Such a write is complete when it is copied, except for the one
///      that completes its part, which is complete when the part is. So no more parts are in flight
///      than writes, and a caller may wait for each write before it submits the next one.
///   2. CreateMultipartUpload begins with the first part; parts that are submitted before its
///      response wait for it.
///   3. UploadPart, many at once. A write that is a part itself is sent from the caller's memory.
///   4. Finish sends what was gathered, and CompleteMultipartUpload. If the response is lost, the
///      object's size decides, because nobody else writes an object of this name. An object that is
///      shorter than a part is one PUT in Finish.
///   5. Without Finish: AbortMultipartUpload. If that is lost too, Storage::RemoveLeftovers repeats
///      it.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/storage/s3/internal/s3_client.h"
#include "kv/storage/s3/internal/s3_xml.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// Names an object for requests.
struct S3Object {
  std::string key;   // in the bucket
  std::string file;  // for Error::file
};

/// Returns the request that creates or replaces an object. `bytes` outlive it.
S3Request PutRequest(const S3Settings& settings, const S3Object& object,
                     std::span<const std::byte> bytes);

/// Ownership: `client` outlives it.
class S3Upload final : public Upload {
 public:
  using PartDone = std::move_only_function<void(Result<void>)>;

  /// The writes have `write_bytes`, except for the last one.
  S3Upload(S3Client& client, S3Object object, uint64_t write_bytes);
  ~S3Upload() override;

  /// Begins a write. `bytes` must outlive the call of `done`, which runs on any thread.
  void StartWrite(std::span<const std::byte> bytes, uint64_t offset_bytes, PartDone done);
  Result<void> Finish(uint64_t size_bytes) override;

 private:
  using Buffer = std::unique_ptr<std::byte[]>;
  struct Part {
    std::span<const std::byte> bytes;
    Buffer buffer;       // null, or contains `bytes`
    uint64_t index = 0;  // its number - 1
    PartDone done;
  };

  /// Adds a write to the part that is being gathered, and begins to upload this part if it is full
  /// or if the write is the last one.
  void GatherWrite(std::span<const std::byte> bytes, PartDone done);
  /// Returns null if there is no memory.
  Buffer TakeBuffer();
  void StartPart(Part part);
  void StartCreation();
  void OnCreated(Result<HttpResponse> response);
  S3Request PartRequest(std::span<const std::byte> bytes, uint64_t index,
                        const std::string& upload_id) const;
  /// Takes the part, whose callback is called in any case.
  void SendPart(Part& given, const std::string& upload_id, bool may_wait);
  void KeepBuffer(Buffer buffer);
  /// Takes note of the response to the request of a part.
  Result<void> AddPart(uint64_t index, std::string digest, const Result<HttpResponse>& response);
  /// Uploads what was gathered, and makes one object of all parts.
  Result<void> FinishParts();
  Result<void> Complete(const std::string& upload_id, const std::vector<S3Part>& parts);
  /// Returns whether the object exists with its size.
  bool Exists();

  S3Client& client_;
  const S3Object object_;
  const uint64_t write_bytes_;
  const uint64_t part_bytes_;  // a multiple of write_bytes_
  // Only the caller's thread uses these.
  bool is_finished_ = false;
  uint64_t started_bytes_ = 0;   // sum of all writes
  Buffer gathered_;              // null, or has part_bytes_
  uint64_t gathered_bytes_ = 0;  // in `gathered_`

  Mutex mutex_;
  bool creation_begun_ CAIRN_GUARDED_BY(mutex_) = false;
  std::string upload_id_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Error> creation_error_ CAIRN_GUARDED_BY(mutex_);
  std::vector<Part> waiting_ CAIRN_GUARDED_BY(mutex_);  // for the upload id
  std::vector<S3Part> parts_ CAIRN_GUARDED_BY(mutex_);
  std::vector<Buffer> free_buffers_ CAIRN_GUARDED_BY(mutex_);
};

/// Aborts an upload.
Result<void> AbortUpload(S3Client& client, const S3Object& object, const std::string& upload_id);

}  // namespace cairn::kv::internal
