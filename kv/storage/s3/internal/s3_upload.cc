// Multipart uploads, and the digests of requests.

#include "kv/storage/s3/internal/s3_upload.h"

#include <fmt/format.h>
#include <libdeflate.h>

#include <memory>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/div.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMaxParts = 10'000;  // limit of S3

// Returns the base64 of the big-endian CRC-32 (ISO-HDLC), as x-amz-checksum-crc32 has it.
std::string EncodedCrc32(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const uint64_t bits = uint64_t{libdeflate_crc32(0, bytes.data(), bytes.size())} << 4;
  std::string text;
  for (int shift = 30; shift >= 0; shift -= 6) text += kDigits[(bits >> shift) & 63];
  return text + "==";  // 36 bits: 32 and four zeros
}

// Adds the digest that the server compares with the body, and returns it.
std::string AddDigest(const S3Settings& settings, S3Request* request) {
  if (!settings.request_digests) return {};
  std::string digest = EncodedCrc32(request->body);
  request->headers.push_back("x-amz-checksum-crc32: " + digest);
  return digest;
}

// Returns a copy; if there is no memory for it, an error that states this.
Error Copy(const Error& error) {
  return CatchExhaustion("an error", [&]() -> Result<void> { return std::unexpected(error); })
      .error();
}

// Returns the error of a request of an upload that has begun. That there is no such upload (any
// more) is not that there is no such object, of which callers may think that it was removed.
Error OfUpload(Error error) {
  if (error.code != ErrorCode::kNotFound) return error;
  error.code = ErrorCode::kUnavailable;
  error.message +=
      "; the upload was aborted on the server, by a rule of the bucket for example; write again";
  return error;
}

}  // namespace

S3Request PutRequest(const S3Settings& settings, const S3Object& object,
                     std::span<const std::byte> bytes) {
  S3Request request{.operation = "put the object",
                    .file = object.file,
                    .method = "PUT",
                    .key = object.key,
                    .body = bytes};
  AddDigest(settings, &request);
  return request;
}

Result<void> AbortUpload(S3Client& client, const S3Object& object, const std::string& upload_id) {
  CAIRN_TRY(client.Perform({.operation = "abort an upload",
                            .file = object.file,
                            .method = "DELETE",
                            .key = object.key,
                            .query = "uploadId=" + EncodeUri(upload_id, false)}));
  return {};
}

S3Upload::S3Upload(S3Client& client, S3Object object, uint64_t part_bytes)
    : client_(client), object_(std::move(object)), part_bytes_(part_bytes) {
  CAIRN_CHECK(part_bytes >= kMinPartBytes);
}

S3Upload::~S3Upload() {
  if (is_finished_ || !client_.is_usable()) return;
  std::string upload_id;
  {
    const MutexLock lock(mutex_);
    upload_id = upload_id_;
  }
  CleanUp([&] {
    if (!upload_id.empty()) (void)AbortUpload(client_, object_, upload_id);
  });
}

void S3Upload::StartWrite(std::span<const std::byte> bytes, uint64_t offset_bytes, Done done) {
  CAIRN_CHECK(offset_bytes == started_bytes_ && offset_bytes % part_bytes_ == 0 &&
              bytes.size() <= part_bytes_);
  started_bytes_ += bytes.size();
  if (started_bytes_ < part_bytes_) {
    whole_.assign(bytes.begin(), bytes.end());
    return done({});
  }
  Part part{.bytes = bytes, .index = offset_bytes / part_bytes_, .done = std::move(done)};
  if (part.index >= kMaxParts) {
    part.done(Fail(Error{.code = ErrorCode::kResourceExhausted,
                         .message = fmt::format("cannot upload a part: the object has more than "
                                                "{} parts of {} bytes; use larger parts",
                                                kMaxParts, part_bytes_),
                         .file = object_.file}));
    return;
  }
  std::string upload_id;
  std::optional<Error> error;
  bool begins_creation = false;
  {
    const MutexLock lock(mutex_);
    if (parts_.size() <= part.index) parts_.resize(part.index + 1);
    upload_id = upload_id_;
    error = creation_error_;
    if (upload_id.empty() && !error) {
      waiting_.push_back(std::move(part));
      begins_creation = !std::exchange(creation_begun_, true);
    }
  }
  if (begins_creation) {
    StartCreation();
  } else if (error) {
    part.done(std::unexpected(*std::move(error)));
  } else if (!upload_id.empty()) {
    SendPart(part, upload_id, /*may_wait=*/true);
  }
}

void S3Upload::StartCreation() {
  S3Request request{.operation = "begin an upload",
                    .file = object_.file,
                    .method = "POST",
                    .key = object_.key,
                    .query = "uploads="};
  if (client_.settings().request_digests) {
    request.headers.emplace_back("x-amz-checksum-algorithm: CRC32");
  }
  client_.Start(std::move(request), /*id=*/0,
                [this](Result<HttpResponse> response) { OnCreated(std::move(response)); });
}

void S3Upload::OnCreated(Result<HttpResponse> response) {
  auto created = CatchExhaustion("an upload", [&]() -> Result<std::string> {
    if (!response) return std::unexpected(std::move(response).error());
    auto upload_id = ParseUploadId(response->body);
    if (!upload_id) return std::unexpected(std::move(upload_id).error().WithFile(object_.file));
    const MutexLock lock(mutex_);
    upload_id_ = *upload_id;  // parts are sent at once from here on
    return upload_id;
  });
  std::vector<Part> parts;
  {
    const MutexLock lock(mutex_);
    parts = std::move(waiting_);
    waiting_.clear();
    if (!created) creation_error_ = Copy(created.error());
  }
  // The owner may destroy the upload as soon as the last part is done.
  for (Part& part : parts) {
    if (created) {
      SendPart(part, *created, /*may_wait=*/false);
    } else {
      part.done(std::unexpected(Copy(created.error())));
    }
  }
}

Result<void> S3Upload::AddPart(uint64_t index, std::string digest,
                               const Result<HttpResponse>& response) {
  if (!response) return Fail(OfUpload(response.error()));
  const std::string_view etag = response->Header("etag");
  if (etag.empty()) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = "cannot upload a part: the server's response has no ETag",
                      .file = object_.file});
  }
  const MutexLock lock(mutex_);
  parts_[index] = {.etag = std::string(etag), .crc32 = std::move(digest)};
  return {};
}

void S3Upload::SendPart(Part& given, const std::string& upload_id, bool may_wait) {
  std::shared_ptr<Part> part;  // shared with the callback
  auto begun = CatchExhaustion("an upload", [&]() -> Result<void> {
    part = std::make_shared<Part>(std::move(given));
    S3Request request{.operation = fmt::format("upload part {}", part->index + 1),
                      .file = object_.file,
                      .method = "PUT",
                      .key = object_.key,
                      .query = fmt::format("partNumber={}&uploadId={}", part->index + 1,
                                           EncodeUri(upload_id, false)),
                      .body = part->bytes};
    std::string digest = AddDigest(client_.settings(), &request);
    S3Done on_response =
        [this, part, digest = std::move(digest)](const Result<HttpResponse>& response) mutable {
          part->done(CatchExhaustion(
              "an upload", [&] { return AddPart(part->index, std::move(digest), response); }));
        };
    if (may_wait) {
      client_.Start(std::move(request), /*id=*/0, std::move(on_response));
    } else {
      client_.StartFromCallback(std::move(request), std::move(on_response));
    }
    return {};
  });
  if (!begun) (part == nullptr ? given : *part).done(std::move(begun));
}

Result<void> S3Upload::Finish(uint64_t size_bytes) {
  if (!client_.is_usable()) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "this process was forked from the one that began the upload",
                      .file = object_.file});
  }
  CAIRN_CHECK(size_bytes == started_bytes_);
  if (size_bytes < part_bytes_) {
    CAIRN_TRY(client_.Perform(PutRequest(client_.settings(), object_, whole_)));
  } else {
    CAIRN_TRY(FinishParts());
  }
  is_finished_ = true;
  return {};
}

Result<void> S3Upload::FinishParts() {
  std::string upload_id;
  std::vector<S3Part> parts;
  {
    const MutexLock lock(mutex_);
    upload_id = upload_id_;
    parts_.resize(DivCeil(started_bytes_, part_bytes_));
    parts = parts_;
  }
  for (const S3Part& part : parts) {
    if (!part.etag.empty()) continue;
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "cannot complete the upload: a part is missing",
                      .file = object_.file});
  }
  const std::string body = CompleteUploadBody(parts);
  const Result<HttpResponse> response =
      client_.Perform({.operation = "complete the upload",
                       .file = object_.file,
                       .method = "POST",
                       .key = object_.key,
                       .query = "uploadId=" + EncodeUri(upload_id, false),
                       .headers = {"Content-Type: application/xml"},
                       .body = std::as_bytes(std::span(body))});
  if (response || Exists()) return {};
  return Fail(OfUpload(response.error()));
}

bool S3Upload::Exists() {
  const Result<HttpResponse> response = client_.Perform(
      {.operation = "read the size", .file = object_.file, .method = "HEAD", .key = object_.key});
  return response && response->Header("content-length") == std::to_string(started_bytes_);
}

}  // namespace cairn::kv::internal
