// Multipart uploads, and the digests of requests.

#include "kv/internal/s3/s3_upload.h"

#include <fmt/format.h>
#include <libdeflate.h>

#include <charconv>
#include <utility>

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMaxParts = 10'000;  // of S3

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
  CAIRN_CHECK(part_bytes_ > 0);
}

S3Upload::~S3Upload() {
  if (is_finished_ || !client_.is_usable()) return;
  if (is_whole_) {
    (void)client_.Perform({.operation = "remove the object",
                           .file = object_.file,
                           .method = "DELETE",
                           .key = object_.key});
    return;
  }
  std::string upload_id;
  {
    const MutexLock lock(mutex_);
    upload_id = upload_id_;
  }
  if (!upload_id.empty()) (void)AbortUpload(client_, object_, upload_id);
}

void S3Upload::StartPart(std::span<const std::byte> bytes, uint64_t offset_bytes, PartDone done) {
  if (offset_bytes == 0 && bytes.size() < part_bytes_) return StartWhole(bytes, std::move(done));
  CAIRN_CHECK(!is_whole_ && offset_bytes % part_bytes_ == 0 && bytes.size() <= part_bytes_);
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
    SendPart(std::move(part), upload_id, /*may_wait=*/true);
  }
}

void S3Upload::StartWhole(std::span<const std::byte> bytes, PartDone done) {
  is_whole_ = true;
  client_.Start(PutRequest(client_.settings(), object_, bytes), client_.NewId(),
                [done = std::move(done)](Result<HttpResponse> response) mutable {
                  done(response ? Result<void>() : std::unexpected(std::move(response).error()));
                });
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
  client_.Start(std::move(request), client_.NewId(),
                [this](Result<HttpResponse> response) { OnCreated(std::move(response)); });
}

void S3Upload::OnCreated(Result<HttpResponse> response) {
  Result<std::string> upload_id =
      response ? ParseUploadId(response->body) : std::unexpected(std::move(response).error());
  if (!upload_id) upload_id.error().file = object_.file;
  std::vector<Part> parts;
  {
    const MutexLock lock(mutex_);
    parts = std::move(waiting_);
    waiting_.clear();
    if (upload_id) {
      upload_id_ = *upload_id;
    } else {
      creation_error_ = upload_id.error();
    }
  }
  // The owner may destroy the upload as soon as the last part is done.
  for (Part& part : parts) {
    if (upload_id) {
      SendPart(std::move(part), *upload_id, /*may_wait=*/false);
    } else {
      part.done(std::unexpected(upload_id.error()));
    }
  }
}

void S3Upload::SendPart(Part part, const std::string& upload_id, bool may_wait) {
  S3Request request{.operation = fmt::format("upload part {}", part.index + 1),
                    .file = object_.file,
                    .method = "PUT",
                    .key = object_.key,
                    .query = fmt::format("partNumber={}&uploadId={}", part.index + 1,
                                         EncodeUri(upload_id, false)),
                    .body = part.bytes};
  std::string digest = AddDigest(client_.settings(), &request);
  S3Done on_response = [this, index = part.index, done = std::move(part.done),
                        digest = std::move(digest)](Result<HttpResponse> response) mutable {
    if (!response) return done(std::unexpected(std::move(response).error()));
    const std::string_view etag = response->Header("etag");
    if (etag.empty()) {
      return done(Fail(Error{.code = ErrorCode::kUnavailable,
                             .message = "cannot upload a part: the server's response has no ETag",
                             .file = object_.file}));
    }
    {
      const MutexLock lock(mutex_);
      parts_[index] = {.etag = std::string(etag), .crc32 = std::move(digest)};
    }
    done({});
  };
  if (may_wait) {
    client_.Start(std::move(request), client_.NewId(), std::move(on_response));
  } else {
    client_.StartFromCallback(std::move(request), client_.NewId(), std::move(on_response));
  }
}

Result<void> S3Upload::Finish(uint64_t size_bytes) {
  std::string upload_id;
  std::vector<S3Part> parts;
  {
    const MutexLock lock(mutex_);
    upload_id = upload_id_;
    parts = parts_;
  }
  if (!client_.is_usable()) {
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "this process was forked from the one that began the upload",
                      .file = object_.file});
  }
  if (is_whole_ || parts.empty()) return FinishWhole(size_bytes);
  CAIRN_CHECK(size_bytes > (parts.size() - 1) * part_bytes_ &&
              size_bytes <= parts.size() * part_bytes_);
  for (const S3Part& part : parts) {
    if (!part.etag.empty()) continue;
    return Fail(Error{.code = ErrorCode::kFailedPrecondition,
                      .message = "cannot complete the upload: a part is missing",
                      .file = object_.file});
  }
  CAIRN_TRY(Complete(upload_id, parts, size_bytes));
  is_finished_ = true;
  return {};
}

Result<void> S3Upload::FinishWhole(uint64_t size_bytes) {
  if (!is_whole_) {
    CAIRN_CHECK(size_bytes == 0);
    CAIRN_TRY(client_.Perform(PutRequest(client_.settings(), object_, {})));
  }
  is_finished_ = true;
  return {};
}

Result<void> S3Upload::Complete(const std::string& upload_id, const std::vector<S3Part>& parts,
                                uint64_t size_bytes) {
  const std::string body = CompleteUploadBody(parts);
  const Result<HttpResponse> response =
      client_.Perform({.operation = "complete the upload",
                       .file = object_.file,
                       .method = "POST",
                       .key = object_.key,
                       .query = "uploadId=" + EncodeUri(upload_id, false),
                       .headers = {"Content-Type: application/xml"},
                       .body = std::as_bytes(std::span(body))});
  if (response || Exists(size_bytes)) return {};
  return std::unexpected(response.error());
}

bool S3Upload::Exists(uint64_t size_bytes) {
  const Result<HttpResponse> response = client_.Perform(
      {.operation = "read the size", .file = object_.file, .method = "HEAD", .key = object_.key});
  return response && response->Header("content-length") == std::to_string(size_bytes);
}

}  // namespace cairn::kv::internal
