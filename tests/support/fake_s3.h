#pragma once
/// The operations of S3 that Cairn uses, in memory, with faults that a test injects. For what real
/// servers do rarely or never; what they do normally is tested with SeaweedFS.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/base/mutex.h"
#include "kv/storage/storage.h"
#include "tests/support/http_server.h"

namespace cairn::testing {

class FakeS3 {
 public:
  /// Sees a request before it is performed. If it returns a reply, the request is not performed.
  using Before = std::function<std::optional<HttpReply>(const HttpCall&)>;
  /// Sees a request that was performed, and may change the reply.
  using After = std::function<void(const HttpCall&, HttpReply*)>;

  FakeS3();

  std::string endpoint() const { return server_.endpoint(); }
  HttpServer& server() { return server_; }
  void SetBefore(Before before);
  void SetAfter(After after);
  void SetIgnoresConditions(bool ignores);
  void SetPageSize(size_t keys);
  void AddObject(const std::string& key, const std::string& bytes);

  std::vector<HttpCall> Calls() const;  // without bodies
  std::map<std::string, std::string> Objects() const;
  size_t UploadCount() const;

 private:
  HttpReply Handle(const HttpCall& call);
  HttpReply Perform(const HttpCall& call) CAIRN_REQUIRES(mutex_);
  HttpReply PutObject(const HttpCall& call, const std::string& key) CAIRN_REQUIRES(mutex_);
  HttpReply GetObject(const HttpCall& call, const std::string& key) CAIRN_REQUIRES(mutex_);
  HttpReply List(const HttpCall& call) CAIRN_REQUIRES(mutex_);
  HttpReply ListUploads(const HttpCall& call) CAIRN_REQUIRES(mutex_);
  HttpReply ChangeUpload(const HttpCall& call, const std::string& key) CAIRN_REQUIRES(mutex_);

  struct MultipartUpload {
    std::string key;
    std::map<int, std::string> parts;
  };

  mutable Mutex mutex_;
  Before before_ CAIRN_GUARDED_BY(mutex_);
  After after_ CAIRN_GUARDED_BY(mutex_);
  bool ignores_conditions_ CAIRN_GUARDED_BY(mutex_) = false;
  size_t page_size_ CAIRN_GUARDED_BY(mutex_) = 1000;
  std::vector<HttpCall> calls_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::string, std::string> objects_ CAIRN_GUARDED_BY(mutex_);
  std::map<std::string, MultipartUpload> uploads_ CAIRN_GUARDED_BY(mutex_);
  int next_upload_ CAIRN_GUARDED_BY(mutex_) = 1;
  HttpServer server_;  // last: its threads use the rest
};

/// Opens the storage at "run/" in the bucket of the server.
std::shared_ptr<kv::Storage> OpenBucket(const FakeS3& server);

/// Returns a response with S3's <Error> document.
HttpReply S3ErrorReply(int status, const std::string& code, const std::string& message = "told so");

}  // namespace cairn::testing
