// Multipart uploads, and the digests of requests.

#include "kv/storage/s3/internal/s3_upload.h"

#include <fmt/format.h>
#include <libdeflate.h>

#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/base/div.h"
#include "kv/storage/internal/object_names.h"

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

S3Request PutRequest(const S3Settings& settings, std::string_view name,
                     std::span<const std::byte> bytes) {
  S3Request request{
      .operation = "put the object", .name = std::string(name), .method = "PUT", .body = bytes};
  AddDigest(settings, &request);
  return request;
}

Result<void> AbortUpload(S3Client& client, std::string_view name, const std::string& upload_id) {
  CAIRN_TRY(client.Perform({.operation = "abort an upload",
                            .name = std::string(name),
                            .method = "DELETE",
                            .parameters = {{"uploadId", upload_id}}}));
  return {};
}

S3Upload::S3Upload(S3Client& client, std::string_view name, uint64_t part_bytes)
    : client_(client),
      name_(name),
      path_(ObjectPath(client.settings().address, name)),
      part_bytes_(part_bytes) {
  CAIRN_CHECK(part_bytes >= kMinPartBytes);
}

S3Upload::~S3Upload() {
  if (is_finished_ || !client_.is_usable()) return;
  CleanUp([&] {
    if (upload_id_ && !upload_id_->empty()) (void)AbortUpload(client_, name_, *upload_id_);
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
  const uint64_t index = offset_bytes / part_bytes_;
  if (index >= kMaxParts) {
    return done(Fail(ErrorCode::kResourceExhausted,
                     fmt::format("cannot upload a part: the object has more than {} parts "
                                 "of {} bytes; use larger parts",
                                 kMaxParts, part_bytes_),
                     path_));
  }
  if (upload_id_ && upload_id_->empty()) upload_id_ = Create();
  if (!upload_id_) return done(Fail(upload_id_.error()));
  {
    const MutexLock lock(mutex_);
    if (parts_.size() <= index) parts_.resize(index + 1);
  }
  S3Request request{
      .operation = fmt::format("upload part {}", index + 1),
      .name = name_,
      .method = "PUT",
      .parameters = {{"partNumber", std::to_string(index + 1)}, {"uploadId", *upload_id_}},
      .body = bytes};
  std::string digest = AddDigest(client_.settings(), &request);
  client_.Start(std::move(request), /*owner=*/nullptr,
                [this, index, digest = std::move(digest),
                 done = std::move(done)](const Result<HttpResponse>& response) mutable {
                  done(CatchExhaustion(
                      "an upload", [&] { return AddPart(index, std::move(digest), response); }));
                });
}

Result<std::string> S3Upload::Create() {
  S3Request request{.operation = "begin an upload",
                    .name = name_,
                    .method = "POST",
                    .parameters = {{"uploads", ""}}};
  if (client_.settings().request_digests) {
    request.headers.emplace_back("x-amz-checksum-algorithm: CRC32");
  }
  CAIRN_TRY_ASSIGN(const HttpResponse response, client_.Perform(std::move(request)));
  auto upload_id = ParseUploadId(response.body);
  if (!upload_id) return Fail(std::move(upload_id).error().WithFile(path_));
  return upload_id;
}

Result<void> S3Upload::AddPart(uint64_t index, std::string digest,
                               const Result<HttpResponse>& response) {
  if (!response) return Fail(OfUpload(response.error()));
  const std::string_view etag = response->Header("etag");
  if (etag.empty()) {
    return Fail(ErrorCode::kUnavailable, "cannot upload a part: the server's response has no ETag",
                path_);
  }
  const MutexLock lock(mutex_);
  parts_[index] = {.etag = std::string(etag), .crc32 = std::move(digest)};
  return {};
}

Result<void> S3Upload::Finish(uint64_t size_bytes) {
  if (!client_.is_usable()) {
    return Fail(ErrorCode::kFailedPrecondition,
                "this process was forked from the one that began the upload", path_);
  }
  CAIRN_CHECK(size_bytes == started_bytes_);
  if (size_bytes < part_bytes_) {
    CAIRN_TRY(client_.Perform(PutRequest(client_.settings(), name_, whole_)));
  } else {
    CAIRN_TRY(FinishParts());
  }
  is_finished_ = true;
  return {};
}

Result<void> S3Upload::FinishParts() {
  CAIRN_TRY(upload_id_);
  std::vector<S3Part> parts;
  {
    const MutexLock lock(mutex_);
    parts_.resize(DivCeil(started_bytes_, part_bytes_));
    parts = parts_;
  }
  for (const S3Part& part : parts) {
    if (!part.etag.empty()) continue;
    return Fail(ErrorCode::kFailedPrecondition, "cannot complete the upload: a part is missing",
                path_);
  }
  const std::string body = CompleteUploadBody(parts);
  const Result<HttpResponse> response =
      client_.Perform({.operation = "complete the upload",
                       .name = name_,
                       .method = "POST",
                       .parameters = {{"uploadId", *upload_id_}},
                       .headers = {"Content-Type: application/xml"},
                       .body = std::as_bytes(std::span(body))});
  if (response || Exists()) return {};
  return Fail(OfUpload(response.error()));
}

bool S3Upload::Exists() {
  const auto response =
      client_.Perform({.operation = "read the size", .name = name_, .method = "HEAD"});
  return response && response->Header("content-length") == std::to_string(started_bytes_);
}

}  // namespace cairn::kv::internal
