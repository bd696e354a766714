// The operations on objects as requests of S3's interface.

#include "kv/storage/s3/internal/s3_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/storage/internal/object_names.h"
#include "kv/storage/internal/transfer_queues.h"
#include "kv/storage/s3/internal/credentials.h"
#include "kv/storage/s3/internal/curl_library.h"
#include "kv/storage/s3/internal/s3_client.h"
#include "kv/storage/s3/internal/s3_responses.h"
#include "kv/storage/s3/internal/s3_settings.h"
#include "kv/storage/s3/internal/s3_upload.h"

namespace cairn::kv::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMaxSinglePutBytes = 64 << 20;
constexpr uint32_t kSmallRequests = 16;
constexpr uint32_t kMaxPartsInFlight = 8;  // of a writer, which has their memory
constexpr int kListingTimeouts = 10;       // the time of a listing, whose pages are repeated too
constexpr std::chrono::milliseconds kTimePerName{10};  // and this for each name
constexpr size_t kMaxNames = 1 << 24;
constexpr size_t kMaxNameBytes = 1024;  // as in S3; longer ones are not names of a store
constexpr uint32_t kMaxIdlePages = 100;
constexpr uint64_t kMaxGapBytes = 256 << 10;

// Objects that test the server have these characters and 16 random hexadecimal digits as names.
constexpr std::string_view kProbePrefix = ".probe-";
constexpr size_t kProbeDigits = 16;
constexpr int kMaxTests = 3;

std::string NewProbeName() { return fmt::format("{}{:016x}", kProbePrefix, NewUniqueNumber()); }

bool IsProbeName(std::string_view name) {
  return name.starts_with(kProbePrefix) &&
         IsHexDigits(name.substr(kProbePrefix.size()), kProbeDigits);
}

/// A queue of reads and of parts of uploads, which the threads of an S3Client transfer. Cancels the
/// reads in flight when it is destroyed. Ownership: `client` outlives it.
class S3Queue final : public CallbackQueue {
 public:
  S3Queue(S3Client& client, uint32_t depth) : CallbackQueue(depth), client_(client) {}
  ~S3Queue() override {
    if (in_flight_ > 0 && is_usable()) client_.Cancel(this);
    WaitForAll();
  }
  bool can_scatter() const override { return true; }
  const char* name() const override { return "s3"; }

 private:
  void BeginRead(const IoRequest& request, Done done) override {
    const bool scatters = !request.slices.empty();
    client_.Start({.operation = "read the object",
                   .name = std::string(request.object),
                   .target = std::span(request.data, scatters ? 0 : request.length_bytes),
                   .slices = request.slices,
                   .offset_bytes = request.offset_bytes},
                  /*owner=*/this, [done = std::move(done)](Result<HttpResponse> response) mutable {
                    if (response) return done({});
                    done(Fail(std::move(response).error()));
                  });
  }
  bool is_usable() const override { return client_.is_usable(); }

  S3Client& client_;
};

/// The entries of all pages of a listing; their keys are names, without the prefix of the store.
using Listed = std::set<S3Listing::Entry>;

class S3Storage final : public Storage {
 public:
  S3Storage(S3Settings settings, CredentialsSource source)
      : settings_(std::move(settings)),
        source_(std::move(source)),
        client_(new S3Client(settings_, source_)) {}
  ~S3Storage() override {
    // In a child, the threads of the parent's client do not exist, so they cannot be joined; to
    // close the sockets politely would end the TLS sessions of the parent.
    S3Client* const client = client_;
    if (client->is_usable()) delete client;
  }
  S3Storage(const S3Storage&) = delete;
  S3Storage& operator=(const S3Storage&) = delete;

  const std::string& address() const override { return settings_.address; }
  /// Buckets of different endpoints are different, even if they have the same name.
  std::string identity() const override { return settings_.address + " at " + settings_.endpoint; }
  TransferSizes transfer_sizes() const override {
    return {.request_bytes = settings_.part_bytes,
            .queue_depth = settings_.queue_depth,
            .small_requests = kSmallRequests,
            .max_gap_bytes = kMaxGapBytes};
  }
  bool listings_are_current() const override { return true; }

  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override {
    CAIRN_CHECK(IsObjectName(name));
    if (bytes.size() > kMaxSinglePutBytes) {
      CAIRN_TRY_ASSIGN(const auto writer, Create(name));
      CAIRN_TRY(writer->Append(bytes));
      return writer->Finish();
    }
    CAIRN_TRY(client().Perform(PutRequest(settings_, name, bytes)));
    return {};
  }

  /// Servers limit the rate of puts of one name, in some cases to one per second.
  Result<void> Overwrite(std::string_view name, std::span<const std::byte> bytes) override {
    CAIRN_CHECK(IsObjectName(name) && bytes.size() <= kMaxSinglePutBytes);
    S3Request request = PutRequest(settings_, name, bytes);
    request.is_repeated = false;
    CAIRN_TRY(client().Perform(std::move(request)));
    return {};
  }

  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override {
    CAIRN_CHECK(IsObjectName(name));
    if (name == kIdentityName) CAIRN_TRY(CheckConditionalWrites());
    return PutNameIfAbsent(name, bytes);
  }

  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override {
    CAIRN_TRY_ASSIGN(auto upload, BeginUpload(name, settings_.part_bytes));
    CAIRN_TRY_ASSIGN(auto queue, MakeQueue(std::min(settings_.queue_depth, kMaxPartsInFlight)));
    return MakeUploadWriter(std::move(upload), std::move(queue), settings_.part_bytes);
  }

  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override {
    CAIRN_CHECK(IsObjectName(name));
    if (target.empty()) {  // HTTP has no empty ranges
      CAIRN_TRY_ASSIGN(const uint64_t size_bytes, Size(name));
      if (offset_bytes <= size_bytes) return {};
      return Fail(EndsBeforeRange(PathOf(name), size_bytes, offset_bytes));
    }
    if (target.size() > 2 * settings_.part_bytes) return ReadInParts(name, offset_bytes, target);
    CAIRN_TRY(client().Perform({.operation = "read the object",
                                .name = std::string(name),
                                .target = target,
                                .offset_bytes = offset_bytes}));
    return {};
  }

  Result<std::vector<std::byte>> Read(std::string_view name, uint64_t limit_bytes) override {
    CAIRN_CHECK(IsObjectName(name));
    const Result<HttpResponse> response =
        client().Perform({.operation = "read the object", .name = std::string(name)});
    // The client keeps no longer responses in memory.
    if (!response && response.error().code == ErrorCode::kUnimplemented) {
      return Storage::Read(name, limit_bytes);
    }
    CAIRN_TRY(response);
    const auto bytes = std::as_bytes(std::span(response->body));
    if (bytes.size() <= limit_bytes) return std::vector(bytes.begin(), bytes.end());
    return Fail(LongerThanLimit(PathOf(name), bytes.size(), limit_bytes));
  }

  Result<uint64_t> Size(std::string_view name) override {
    CAIRN_CHECK(IsObjectName(name));
    CAIRN_TRY_ASSIGN(const HttpResponse response, client().Perform({.operation = "read the size",
                                                                    .name = std::string(name),
                                                                    .method = "HEAD"}));
    const auto size_bytes = ParseDecimal(response.Header("content-length"));
    if (size_bytes) return *size_bytes;
    return Fail(ErrorCode::kUnavailable, "cannot read the size: the response has no Content-Length",
                PathOf(name));
  }

  Result<std::vector<std::string>> List(std::string_view prefix) override {
    CAIRN_CHECK(IsObjectPrefix(prefix));
    CAIRN_TRY_ASSIGN(Listed listed, ListNames(prefix));
    std::vector<std::string> names;
    names.reserve(listed.size());
    while (!listed.empty()) {
      std::string name = std::move(listed.extract(listed.begin()).value().key);
      if (IsObjectName(name)) names.push_back(std::move(name));
    }
    return names;
  }

  Result<void> Remove(std::string_view name) override {
    CAIRN_CHECK(IsObjectName(name));
    return RemoveName(name);
  }

  Result<void> RemoveLeftovers(uint32_t end_epoch) override {
    const auto abort = [this, end_epoch](ObjectKind kind) {
      return [this, kind, end_epoch] { return AbortUploadsBelow(kind, end_epoch); };
    };
    return RunRequests(*this, {abort(ObjectKind::kSegment), abort(ObjectKind::kTable),
                               abort(ObjectKind::kPage), [this] { return RemoveProbes(); }});
  }

  Result<std::unique_ptr<IoQueue>> MakeQueue(uint32_t depth) override {
    return std::make_unique<S3Queue>(client(), depth);
  }

  Result<std::unique_ptr<Upload>> BeginUpload(std::string_view name,
                                              uint64_t write_bytes) override {
    CAIRN_CHECK(IsObjectName(name) && write_bytes > 0);
    // Writes that are shorter than parts are gathered.
    if (write_bytes < kMinPartBytes) return Storage::BeginUpload(name, write_bytes);
    return std::make_unique<S3Upload>(client(), name, write_bytes);
  }

 private:
  std::string PathOf(std::string_view name) const { return ObjectPath(settings_.address, name); }

  /// Returns the client of this process.
  S3Client& client() {
    S3Client* found = client_.load(std::memory_order_acquire);
    if (found->is_usable()) return *found;
    // The parent's client is not touched: its locks are in an unknown state.
    auto own = std::make_unique<S3Client>(settings_, source_);
    if (client_.compare_exchange_strong(found, own.get())) return *own.release();
    return *found;  // from another thread of this child
  }

  Result<void> PutNameIfAbsent(std::string_view name, std::span<const std::byte> bytes) {
    S3Request request = PutRequest(settings_, name, bytes);
    request.headers.emplace_back("If-None-Match: *");
    const Result<HttpResponse> response = client().Perform(std::move(request));
    if (response) return {};
    if (response.error().code != ErrorCode::kConflict) return Fail(response.error());
    return Fail(ErrorCode::kConflict, "the object exists", PathOf(name));
  }

  /// Tests whether the server refuses to replace an object with "If-None-Match: *".
  Result<void> CheckConditionalWrites() {
    constexpr std::array<std::byte, 1> kByte = {std::byte{'x'}};
    Result<void> second;
    // Another process may remove the object of a test, as a leftover of a killed process. It does
    // not remove the objects of all tests.
    for (int test = 0; second && test < kMaxTests; ++test) {
      const std::string probe = NewProbeName();
      const Result<void> first = PutNameIfAbsent(probe, kByte);
      if (first) second = PutNameIfAbsent(probe, kByte);
      (void)RemoveName(probe);
      // A conflict of the first one is a repeated request, so the condition is not ignored.
      if (!first && first.error().code == ErrorCode::kConflict) return {};
      CAIRN_TRY(first);
    }
    if (second) {
      return Fail(ErrorCode::kFailedPrecondition,
                  fmt::format("the server at {} ignores \"If-None-Match: *\": it replaced an "
                              "object that must not be replaced, so two writers could overwrite "
                              "each other's steps; use a server, or a version of it, with "
                              "conditional writes",
                              settings_.endpoint),
                  settings_.address);
    }
    if (second.error().code == ErrorCode::kConflict) return {};
    return second;
  }

  Result<void> ReadInParts(std::string_view name, uint64_t offset_bytes,
                           std::span<std::byte> target) {
    S3Queue queue(client(), settings_.queue_depth);
    uint64_t submitted_bytes = 0;
    while (submitted_bytes < target.size() || queue.in_flight() > 0) {
      if (submitted_bytes < target.size() && queue.in_flight() < queue.depth()) {
        const uint64_t length = std::min(settings_.part_bytes, target.size() - submitted_bytes);
        CAIRN_TRY(queue.Submit({.object = name,
                                .data = target.data() + submitted_bytes,
                                .length_bytes = length,
                                .offset_bytes = offset_bytes + submitted_bytes}));
        submitted_bytes += length;
        continue;
      }
      CAIRN_TRY_ASSIGN(IoCompletion completion, queue.Wait());
      if (completion.error) return Fail(*std::move(completion.error));
    }
    return {};
  }

  Result<void> RemoveName(std::string_view name) {
    const Result<HttpResponse> response = client().Perform(
        {.operation = "remove the object", .name = std::string(name), .method = "DELETE"});
    // Some servers report that there was no object, AWS does not.
    if (response || response.error().code == ErrorCode::kNotFound) return {};
    return Fail(response.error());
  }

  /// Returns what all pages of a listing of names with `prefix` contain. `parameters` are those of
  /// the kind of listing.
  ///
  /// A server, or a proxy that repeats its responses, may return pages without end. So a listing
  /// fails with kUnavailable if it has too many names, takes more than a time that grows with their
  /// number, names the same next page twice, or has too many pages in a row without a new name.
  Result<Listed> ListPages(const char* operation, std::string_view prefix,
                           std::map<std::string, std::string> parameters) {
    const auto begin = Clock::now();
    const std::string path = PathOf(prefix);
    const std::string key_prefix = settings_.prefix + std::string(prefix);
    parameters["prefix"] = key_prefix;
    Listed listed;
    for (uint32_t idle_pages = 0;;) {
      CAIRN_TRY_ASSIGN(const HttpResponse response, client().Perform({.operation = operation,
                                                                      .name = std::string(prefix),
                                                                      .of_bucket = true,
                                                                      .parameters = parameters}));
      Result<S3Listing> page = ParseS3Listing(response.body);
      if (!page) return Fail(std::move(page).error().WithFile(path));
      const size_t count_before = listed.size();
      for (S3Listing::Entry& entry : page->entries) {
        // A server that lists keys of others ignores the prefix, or changes keys. Its lists may
        // then lack objects.
        if (!entry.key.starts_with(key_prefix)) {
          return Fail(ErrorCode::kUnavailable,
                      fmt::format("the server listed the key \"{}\", which does not begin "
                                  "with the prefix \"{}\"",
                                  Printable(entry.key), key_prefix),
                      path);
        }
        entry.key.erase(0, settings_.prefix.size());
        if (entry.key.size() <= kMaxNameBytes) listed.insert(std::move(entry));
      }
      if (page->next.empty()) return listed;
      const size_t count = listed.size();
      idle_pages = count == count_before ? idle_pages + 1 : 0;
      const auto last = parameters;
      for (const auto& [name, value] : page->next) parameters[name] = value;
      const auto elapsed = Clock::now() - begin;
      if (parameters == last || idle_pages == kMaxIdlePages || count >= kMaxNames ||
          elapsed > kListingTimeouts * settings_.timeout + count * kTimePerName) {
        return Fail(
            ErrorCode::kUnavailable,
            fmt::format(
                "the server's listing does not end: it has {} names after {} s, and the last {} "
                "pages contain no new one",
                count, std::chrono::duration_cast<std::chrono::seconds>(elapsed).count(),
                idle_pages),
            path);
      }
    }
  }

  /// Includes names that IsObjectName refuses.
  Result<Listed> ListNames(std::string_view prefix) {
    return ListPages("list objects", prefix, {{"list-type", "2"}});
  }

  Result<void> RemoveProbes() {
    CAIRN_TRY_ASSIGN(const Listed listed, ListNames(kProbePrefix));
    for (const auto& [name, upload_id] : listed) {
      if (IsProbeName(name)) CAIRN_TRY(RemoveName(name));
    }
    return {};
  }

  Result<void> AbortUploadsBelow(ObjectKind kind, uint32_t end_epoch) {
    const std::string_view folder = ObjectFolder(kind);
    CAIRN_TRY_ASSIGN(const Listed listed, ListPages("list uploads", folder, {{"uploads", ""}}));
    const auto deadline = Clock::now() + kListingTimeouts * settings_.timeout;
    for (const auto& [name, upload_id] : listed) {
      if (Clock::now() > deadline) {
        return Fail(ErrorCode::kUnavailable,
                    "the server takes too long to abort uploads; the next open for "
                    "writing aborts the others",
                    PathOf(folder));
      }
      const auto parsed = ParseObjectName(name);
      // Others belong to another program, or to a writer that has taken over the store.
      if (!parsed || parsed->id.epoch >= end_epoch) continue;
      const Result<void> aborted = AbortUpload(client(), name, upload_id);
      if (!aborted && aborted.error().code != ErrorCode::kNotFound) return aborted;
    }
    return {};
  }

  const S3Settings settings_;
  const CredentialsSource source_;
  std::atomic<S3Client*> client_;  // owned; the parent's in a forked child
};

}  // namespace

Result<std::shared_ptr<Storage>> OpenS3Storage(const std::string& address,
                                               const S3Options& options) {
  CAIRN_TRY_ASSIGN(const S3Address parsed, ParseS3Address(address, options));
  const std::string& profile_name = parsed.options.profile;
  CAIRN_TRY_ASSIGN(AwsProfile profile, ReadAwsProfile(profile_name, &ProcessEnvironment));
  CAIRN_TRY_ASSIGN(S3Settings settings, ResolveS3Settings(parsed, profile, &ProcessEnvironment));
  CAIRN_TRY(OpenCurlLibrary());
  CredentialsSource source = options.credentials;
  if (!source) {
    source = [context = CredentialContext{.profile = std::move(profile),
                                          .profile_is_explicit = !profile_name.empty(),
                                          .ca_bundle = settings.ca_bundle,
                                          .environment = &ProcessEnvironment}] {
      return FindCredentials(context);
    };
  }
  return std::make_shared<S3Storage>(std::move(settings), std::move(source));
}

}  // namespace cairn::kv::internal
