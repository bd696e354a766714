// Path-style requests of one bucket. Signatures are not checked.

#include "tests/support/fake_s3.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kv/storage/open/open_storage.h"
#include "tests/support/result_matchers.h"

namespace cairn::testing {
namespace {

constexpr const char* kBucketPath = "/bucket/";
constexpr size_t kMinPartBytes = 5 << 20;

}  // namespace

HttpReply S3ErrorReply(int status, const std::string& code, const std::string& message) {
  return {.status = status,
          .headers = {"x-amz-request-id: REQUEST-1"},
          .body = fmt::format("<?xml version=\"1.0\"?><Error><Code>{}</Code><Message>{}</Message>"
                              "</Error>",
                              code, message)};
}

std::shared_ptr<kv::Storage> OpenBucket(const FakeS3& server) {
  kv::S3Options options;
  options.credentials = []() -> Result<kv::S3Credentials> {
    return kv::S3Credentials{.access_key_id = "KEY", .secret_access_key = "SECRET"};
  };
  auto storage = kv::OpenStorage("s3://bucket/run?endpoint=" + server.endpoint(), options);
  CAIRN_EXPECT_OK(storage);
  return storage ? *storage : nullptr;
}

FakeS3::FakeS3() : server_([this](const HttpCall& call) { return Handle(call); }) {}

void FakeS3::SetBefore(Before before) {
  const MutexLock lock(mutex_);
  before_ = std::move(before);
}
void FakeS3::SetAfter(After after) {
  const MutexLock lock(mutex_);
  after_ = std::move(after);
}
void FakeS3::SetIgnoresConditions(bool ignores) {
  const MutexLock lock(mutex_);
  ignores_conditions_ = ignores;
}
void FakeS3::SetPageSize(size_t keys) {
  const MutexLock lock(mutex_);
  page_size_ = keys;
}
void FakeS3::AddObject(const std::string& key, const std::string& bytes) {
  const MutexLock lock(mutex_);
  objects_[key] = bytes;
}
std::vector<HttpCall> FakeS3::Calls() const {
  const MutexLock lock(mutex_);
  return calls_;
}
std::map<std::string, std::string> FakeS3::Objects() const {
  const MutexLock lock(mutex_);
  return objects_;
}
size_t FakeS3::UploadCount() const {
  const MutexLock lock(mutex_);
  return uploads_.size();
}

HttpReply FakeS3::Handle(const HttpCall& call) {
  const MutexLock lock(mutex_);
  calls_.push_back(
      {.method = call.method, .target = call.target, .headers = call.headers, .body = ""});
  if (before_) {
    if (std::optional<HttpReply> reply = before_(call)) return *std::move(reply);
  }
  HttpReply reply = Perform(call);
  if (after_) after_(call, &reply);
  return reply;
}

HttpReply FakeS3::Perform(const HttpCall& call) {
  if (!call.Path().starts_with(kBucketPath)) return S3ErrorReply(404, "NoSuchBucket");
  const std::string key = call.Path().substr(std::string(kBucketPath).size());
  if (key.empty()) return call.Parameter("uploads") ? ListUploads(call) : List(call);
  if (call.Parameter("uploads") || call.Parameter("uploadId")) return ChangeUpload(call, key);
  if (call.method == "PUT") return PutObject(call, key);
  if (call.method == "DELETE") {
    objects_.erase(key);
    return {.status = 204};
  }
  return GetObject(call, key);
}

HttpReply FakeS3::PutObject(const HttpCall& call, const std::string& key) {
  const bool is_conditional = call.Header("if-none-match") == "*" && !ignores_conditions_;
  if (is_conditional && objects_.contains(key)) return S3ErrorReply(412, "PreconditionFailed");
  objects_[key] = call.body;
  return {.headers = {"ETag: \"1\""}};
}

HttpReply FakeS3::GetObject(const HttpCall& call, const std::string& key) {
  const auto object = objects_.find(key);
  if (object == objects_.end()) return S3ErrorReply(404, "NoSuchKey");
  const std::string& bytes = object->second;
  size_t begin = 0;
  size_t last = 0;
  if (std::sscanf(call.Header("range").c_str(), "bytes=%zu-%zu", &begin, &last) != 2) {
    return {.body = bytes};
  }
  if (begin >= bytes.size()) return S3ErrorReply(416, "InvalidRange");
  last = std::min(last, bytes.size() - 1);
  return {.status = 206,
          .headers = {fmt::format("Content-Range: bytes {}-{}/{}", begin, last, bytes.size())},
          .body = bytes.substr(begin, last - begin + 1)};
}

HttpReply FakeS3::List(const HttpCall& call) {
  const std::string prefix = call.Parameter("prefix").value_or("");
  const std::string after = call.Parameter("continuation-token").value_or("");
  std::string contents;
  std::string last;
  size_t count = 0;
  bool is_truncated = false;
  for (const auto& [key, bytes] : objects_) {
    if (!key.starts_with(prefix) || key <= after) continue;
    if (++count > page_size_) {
      is_truncated = true;
      break;
    }
    contents += fmt::format("<Contents><Key>{}</Key></Contents>", key);
    last = key;
  }
  return {.body = fmt::format(
              "<ListBucketResult>{}<IsTruncated>{}</IsTruncated>{}</ListBucketResult>", contents,
              is_truncated,
              is_truncated ? fmt::format("<NextContinuationToken>{}</NextContinuationToken>", last)
                           : "")};
}

HttpReply FakeS3::ListUploads(const HttpCall& call) {
  const std::string prefix = call.Parameter("prefix").value_or("");
  std::string body;
  for (const auto& [id, upload] : uploads_) {
    if (!upload.key.starts_with(prefix)) continue;
    body += fmt::format("<Upload><Key>{}</Key><UploadId>{}</UploadId></Upload>", upload.key, id);
  }
  return {.body = "<ListMultipartUploadsResult>" + body + "</ListMultipartUploadsResult>"};
}

HttpReply FakeS3::ChangeUpload(const HttpCall& call, const std::string& key) {
  if (call.Parameter("uploads")) {
    const std::string id = fmt::format("upload/{}+", next_upload_++);
    uploads_[id].key = key;
    return {.body = fmt::format("<InitiateMultipartUploadResult><UploadId>{}</UploadId>"
                                "</InitiateMultipartUploadResult>",
                                id)};
  }
  const auto upload = uploads_.find(*call.Parameter("uploadId"));
  if (upload == uploads_.end()) return S3ErrorReply(404, "NoSuchUpload");
  if (call.method == "PUT") {
    const int number = std::stoi(call.Parameter("partNumber").value_or("0"));
    upload->second.parts[number] = call.body;
    return {.headers = {fmt::format("ETag: \"part-{}\"", number)}};
  }
  if (call.method == "POST") {
    std::string bytes;
    const int last = upload->second.parts.empty() ? 0 : upload->second.parts.rbegin()->first;
    for (const auto& [number, part] : upload->second.parts) {
      if (number != last && part.size() < kMinPartBytes) return S3ErrorReply(400, "EntityTooSmall");
      const std::string named =
          fmt::format("<ETag>\"part-{0}\"</ETag><PartNumber>{0}</PartNumber>", number);
      if (call.body.find(named) == std::string::npos) return S3ErrorReply(400, "InvalidPart");
      bytes += part;
    }
    objects_[key] = bytes;
  }
  uploads_.erase(upload);
  return {.status = call.method == "POST" ? 200 : 204,
          .body = call.method == "POST" ? "<CompleteMultipartUploadResult/>" : ""};
}

}  // namespace cairn::testing
