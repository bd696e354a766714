#pragma once
/// Requests to one bucket: signed, repeated after failures, and with many in flight.
///
/// A request is repeated, with growing pauses, until it succeeds, fails for a reason that time does
/// not change, or its deadline (S3Settings::timeout) passes:
///
///   status 500, 502, 503, 504, 408, 429, 409    after 50 ms, 100 ms, ... 5 s, half of it random;
///   connection refused, lost or stalled         not before Retry-After, if the server requests it
///   an incomplete response
///   expired or unknown credentials              once, with credentials obtained again
///
/// A thread that repeats a request waits for the credentials if they have expired; its other
/// transfers wait too. Requests that begin in time obtain others before that.
///
/// Each thread has many requests of libcurl in flight. Connections are kept open and used again.
///
/// Redirects are never followed: a request is signed only for the host that the address or the
/// configuration names, for the object and the operation that the caller wants. (AWS redirects only
/// requests at the endpoint of another region than the bucket's; the error names the region.)
///
/// So a write may be performed twice. A server that cannot be connected to is given up after four
/// attempts if it has never answered.

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/storage/s3/internal/credentials.h"
#include "kv/storage/s3/internal/http_transfer.h"
#include "kv/storage/s3/internal/s3_responses.h"
#include "kv/storage/s3/internal/s3_settings.h"

namespace cairn::kv::internal {

// A counter per place in a bucket, for all clients of this process. A count in each client would
// have to be passed through every interface between it and those who show it.

/// Returns the counter of `address` ("s3://BUCKET/PREFIX"), which exists until the process ends.
/// Threads: any.
std::atomic<uint64_t>& RepeatedRequestCounter(const std::string& address);

struct S3Request {
  std::string operation;   // completes "cannot ...", such as "put the object"
  std::string name;        // of an object, for the URL and for Error::file
  bool of_bucket = false;  // the request is one to the bucket, of which `name` is a prefix
  std::string method = "GET";
  std::map<std::string, std::string> parameters;  // of the URL
  std::vector<std::string> headers;               // "Name: value"
  std::span<const std::byte> body;                // outlives the request
  /// If not empty: filled with the object's bytes from `offset_bytes` on. Outlives the request.
  std::span<std::byte> target;
  std::span<const IoSlice> slices;  // if not empty: filled instead of `target`
  uint64_t offset_bytes = 0;
  /// Otherwise it fails after 2 s, and is not repeated after failures except for credentials.
  bool is_repeated = true;

  uint64_t target_bytes() const;
};

/// Gets a response with a status of 2xx, or the error. Runs on any thread, possibly before Start
/// has returned, and must not throw.
using S3Done = std::move_only_function<void(Result<HttpResponse>)>;

/// Requires that no request is in flight when it is destroyed.
/// Threads: all members may run on many threads at once, but not in a forked child.
class S3Client {
 public:
  S3Client(const S3Settings& settings, CredentialsSource source);
  S3Client(const S3Client&) = delete;
  S3Client& operator=(const S3Client&) = delete;
  ~S3Client();

  const S3Settings& settings() const { return settings_; }
  /// Returns false in a child that was forked after the construction: it has no thread, and waiting
  /// for one would never end.
  bool is_usable() const;

  /// Begins a request; `done` is called exactly once, unless this throws. May wait for credentials,
  /// which are obtained on this thread. `owner` is for Cancel, and may be null.
  void Start(S3Request request, const void* owner, S3Done done);
  /// Begins a request, waits for it, and returns its response.
  Result<HttpResponse> Perform(S3Request request);
  /// Completes the requests of this owner soon, with kCancelled.
  void Cancel(const void* owner);

 private:
  struct Operation;
  /// An operation moves between lists as a node, which needs no memory: whatever happens, its
  /// callback is called.
  using Operations = std::list<Operation>;
  class Worker;

  HttpRequest MakeHttpRequest(const Operation& operation) const;
  S3Outcome Judge(const Operation& operation, const HttpResponse& response) const;
  /// Completes the operation after an attempt, or returns true if there must be another one.
  bool Handle(Operation& operation, HttpResponse response);
  /// Returns when to try again after an attempt that was not successful; nothing if never.
  std::optional<std::chrono::steady_clock::time_point> NextAttempt(Operation& operation,
                                                                   const S3Outcome& outcome);

  const S3Settings settings_;
  const pid_t pid_;
  CredentialsCache credentials_;
  std::atomic<uint64_t>& repeated_count_;   // shared by all clients of this address
  std::atomic<bool> has_answered_ = false;  // whether there ever was a response
  HttpOptions http_options_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace cairn::kv::internal
