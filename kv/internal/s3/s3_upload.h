#pragma once
/// Objects that are uploaded in parts.
///
/// Protocol of an Upload:
///   1. if the first part is shorter than `part_bytes`, it is the whole object: one PUT, and Finish
///      has nothing to do. (The destructor removes the object if there was no Finish.)
///   2. otherwise CreateMultipartUpload begins with the first part; parts that are submitted before
///      its response wait for it;
///   3. UploadPart with number offset / part_bytes + 1, from the caller's memory, many at once;
///   4. CompleteMultipartUpload in Finish. If its response is lost, the object's size decides,
///      because nobody else writes an object of this name;
///   5. without Finish: AbortMultipartUpload. If that is lost too, Storage::RemoveLeftovers repeats
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

#include "kv/error.h"
#include "kv/internal/s3/s3_client.h"
#include "kv/internal/s3/s3_xml.h"
#include "kv/mutex.h"
#include "kv/storage.h"
#include "kv/thread_annotations.h"

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

  S3Upload(S3Client& client, S3Object object, uint64_t part_bytes);
  ~S3Upload() override;

  /// Begins to upload a part. `bytes` must outlive the call of `done`, which runs on any thread.
  void StartPart(std::span<const std::byte> bytes, uint64_t offset_bytes, PartDone done);
  Result<void> Finish(uint64_t size_bytes) override;

 private:
  struct Part {
    std::span<const std::byte> bytes;
    uint64_t index = 0;  // its number - 1
    PartDone done;
  };

  void StartWhole(std::span<const std::byte> bytes, PartDone done);
  void StartCreation();
  void OnCreated(Result<HttpResponse> response);
  void SendPart(Part part, const std::string& upload_id, bool may_wait);
  Result<void> FinishWhole(uint64_t size_bytes);
  Result<void> Complete(const std::string& upload_id, const std::vector<S3Part>& parts,
                        uint64_t size_bytes);
  /// Returns whether the object exists with this size.
  bool Exists(uint64_t size_bytes);

  S3Client& client_;
  const S3Object object_;
  const uint64_t part_bytes_;
  // Only the caller's thread uses these.
  bool is_whole_ = false;
  bool is_finished_ = false;

  Mutex mutex_;
  bool creation_begun_ CAIRN_GUARDED_BY(mutex_) = false;
  std::string upload_id_ CAIRN_GUARDED_BY(mutex_);
  std::optional<Error> creation_error_ CAIRN_GUARDED_BY(mutex_);
  std::vector<Part> waiting_ CAIRN_GUARDED_BY(mutex_);  // for the upload id
  std::vector<S3Part> parts_ CAIRN_GUARDED_BY(mutex_);
};

/// Aborts an upload.
Result<void> AbortUpload(S3Client& client, const S3Object& object, const std::string& upload_id);

}  // namespace cairn::kv::internal
