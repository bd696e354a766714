// The operations on objects as requests of S3's interface.

#include "kv/storage/s3/internal/s3_storage.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <random>
#include <utility>

#include "kv/storage/internal/concurrent_requests.h"
#include "kv/storage/internal/listing.h"
#include "kv/storage/internal/object_names.h"
#include "kv/storage/s3/internal/aws_profile.h"
#include "kv/storage/s3/internal/credential_sources.h"
#include "kv/storage/s3/internal/curl_library.h"
#include "kv/storage/s3/internal/environment.h"
#include "kv/storage/s3/internal/s3_errors.h"
#include "kv/storage/s3/internal/s3_queue.h"
#include "kv/storage/s3/internal/s3_writer.h"
#include "kv/storage/s3/internal/s3_xml.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMaxSinglePutBytes = 64 << 20;
constexpr uint32_t kSmallRequests = 16;
constexpr int kListingTimeouts = 10;  // the time of a listing, whose pages are repeated too
constexpr uint64_t kMaxGapBytes = 256 << 10;

// Objects that test the server have these characters and 16 random hexadecimal digits as names.
constexpr std::string_view kProbePrefix = ".probe-";
constexpr size_t kProbeDigits = 16;
constexpr int kMaxTests = 3;

std::string NewProbeName() {
  std::random_device device;
  return fmt::format("{}{:08x}{:08x}", kProbePrefix, static_cast<uint32_t>(device()),
                     static_cast<uint32_t>(device()));
}

bool IsProbeName(std::string_view name) {
  return name.starts_with(kProbePrefix) && name.size() == kProbePrefix.size() + kProbeDigits &&
         name.find_first_not_of("0123456789abcdef", kProbePrefix.size()) == std::string_view::npos;
}

// A server that lists keys of others ignores the prefix, or changes keys. Its lists may then lack
// objects.
Result<void> CheckListedKey(std::string_view key, const S3Object& folder) {
  if (key.starts_with(folder.key)) return {};
  return Fail(Error{.code = ErrorCode::kUnavailable,
                    .message = fmt::format("the server listed the key \"{}\", which does not begin "
                                           "with the prefix \"{}\"",
                                           Printable(key), folder.key),
                    .file = folder.file});
}

}  // namespace

struct S3Storage::Connections {
  Connections(const S3Settings& settings, const CredentialsSource& source)
      : client(settings, source) {}
  S3Client client;
};

S3Storage::S3Storage(S3Settings settings, CredentialsSource source)
    : settings_(std::move(settings)),
      source_(std::move(source)),
      connections_(new Connections(settings_, source_)) {}

S3Storage::~S3Storage() {
  // In a child, the threads of the parent's connections do not exist, so they cannot be joined; to
  // close the sockets politely would end the TLS sessions of the parent.
  Connections* connections = connections_.load();
  if (connections->client.is_usable()) delete connections;
}

S3Client& S3Storage::client() {
  Connections* connections = connections_.load(std::memory_order_acquire);
  if (connections->client.is_usable()) return connections->client;
  // The parent's connections are not touched: their locks are in an unknown state.
  auto own = std::make_unique<Connections>(settings_, source_);
  if (connections_.compare_exchange_strong(connections, own.get())) return own.release()->client;
  return connections->client;  // from another thread of this child
}

S3Object S3Storage::ObjectOf(std::string_view name) const {
  return {.key = settings_.prefix + std::string(name), .file = ObjectPath(settings_.address, name)};
}

Result<void> S3Storage::Put(std::string_view name, std::span<const std::byte> bytes) {
  CAIRN_CHECK(IsObjectName(name));
  if (bytes.size() > kMaxSinglePutBytes) return PutInParts(name, bytes);
  CAIRN_TRY(client().Perform(PutRequest(settings_, ObjectOf(name), bytes)));
  return {};
}

Result<void> S3Storage::PutInParts(std::string_view name, std::span<const std::byte> bytes) {
  S3Upload upload(client(), ObjectOf(name), settings_.part_bytes);
  S3Queue queue(client(), nullptr, settings_.queue_depth);
  std::optional<Error> error;
  uint64_t submitted_bytes = 0;
  while (queue.in_flight() > 0 || (submitted_bytes < bytes.size() && !error)) {
    const bool can_submit = submitted_bytes < bytes.size() && !error;
    if (can_submit && queue.in_flight() < queue.depth()) {
      const uint64_t length = std::min(settings_.part_bytes, bytes.size() - submitted_bytes);
      // The queue only reads what is written to an upload.
      auto* data = const_cast<std::byte*>(bytes.data() + submitted_bytes);
      CAIRN_TRY(queue.Submit({.upload = &upload,
                              .write = true,
                              .data = data,
                              .length_bytes = length,
                              .offset_bytes = submitted_bytes}));
      submitted_bytes += length;
      continue;
    }
    CAIRN_TRY_ASSIGN(IoCompletion completion, queue.Wait());
    if (completion.error && !error) error = std::move(completion.error);
  }
  if (error) return std::unexpected(*std::move(error));
  return upload.Finish(bytes.size());
}

Result<void> S3Storage::PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) {
  CAIRN_CHECK(IsObjectName(name));
  if (name == kIdentityName) CAIRN_TRY(CheckConditionalWrites());
  return PutKeyIfAbsent(ObjectOf(name), bytes);
}

Result<void> S3Storage::PutKeyIfAbsent(const S3Object& object, std::span<const std::byte> bytes) {
  S3Request request = PutRequest(settings_, object, bytes);
  request.headers.emplace_back("If-None-Match: *");
  const Result<HttpResponse> response = client().Perform(std::move(request));
  if (response) return {};
  if (response.error().code != ErrorCode::kConflict) return std::unexpected(response.error());
  return Fail(
      Error{.code = ErrorCode::kConflict, .message = "the object exists", .file = object.file});
}

Result<void> S3Storage::CheckConditionalWrites() {
  // Another process may remove the object of a test, as a leftover of a killed process. It does not
  // remove the objects of all tests.
  for (int attempt = 1;; ++attempt) {
    const Result<void> tested = TestConditionalWrites();
    if (tested || tested.error().code != ErrorCode::kFailedPrecondition || attempt == kMaxTests) {
      return tested;
    }
  }
}

Result<void> S3Storage::TestConditionalWrites() {
  const S3Object probe = ObjectOf(NewProbeName());
  constexpr std::array<std::byte, 1> kByte = {std::byte{'x'}};
  // A conflict of the first one is a repeated request, so the condition is not ignored.
  const Result<void> first = PutKeyIfAbsent(probe, kByte);
  if (!first) {
    (void)RemoveKey(probe);
    if (first.error().code == ErrorCode::kConflict) return {};
    return first;
  }
  const Result<void> second = PutKeyIfAbsent(probe, kByte);
  (void)RemoveKey(probe);
  if (second) {
    return Fail(Error{
        .code = ErrorCode::kFailedPrecondition,
        .message = fmt::format("the server at {} ignores \"If-None-Match: *\": it replaced an "
                               "object that must not be replaced, so two writers could overwrite "
                               "each other's steps; use a server, or a version of it, with "
                               "conditional writes",
                               settings_.endpoint),
        .file = settings_.address});
  }
  if (second.error().code == ErrorCode::kConflict) return {};
  return second;
}

Result<std::unique_ptr<ObjectWriter>> S3Storage::Create(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  return std::make_unique<S3Writer>(client(), ObjectOf(name));
}

Result<void> S3Storage::ReadRange(std::string_view name, uint64_t offset_bytes,
                                  std::span<std::byte> target) {
  CAIRN_CHECK(IsObjectName(name));
  const S3Object object = ObjectOf(name);
  if (target.empty()) {  // HTTP has no empty ranges
    CAIRN_TRY_ASSIGN(const uint64_t size_bytes, Size(name));
    if (offset_bytes <= size_bytes) return {};
    return Fail(Error{
        .code = ErrorCode::kDataLoss,
        .message = fmt::format("the object has {} bytes and ends before the range", size_bytes),
        .file = object.file,
        .offset_bytes = offset_bytes});
  }
  if (target.size() > 2 * settings_.part_bytes) return ReadInParts(name, offset_bytes, target);
  Result<HttpResponse> response = client().Perform({.operation = "read the object",
                                                    .file = object.file,
                                                    .key = object.key,
                                                    .target = target,
                                                    .offset_bytes = offset_bytes});
  if (!response) return std::unexpected(std::move(response).error().WithOffset(offset_bytes));
  return {};
}

Result<void> S3Storage::ReadInParts(std::string_view name, uint64_t offset_bytes,
                                    std::span<std::byte> target) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<IoQueue> queue, MakeQueue(settings_.queue_depth));
  uint64_t submitted_bytes = 0;
  while (submitted_bytes < target.size() || queue->in_flight() > 0) {
    if (submitted_bytes < target.size() && queue->in_flight() < queue->depth()) {
      const uint64_t length = std::min(settings_.part_bytes, target.size() - submitted_bytes);
      CAIRN_TRY(queue->Submit({.object = name,
                               .data = target.data() + submitted_bytes,
                               .length_bytes = length,
                               .offset_bytes = offset_bytes + submitted_bytes}));
      submitted_bytes += length;
      continue;
    }
    CAIRN_TRY_ASSIGN(IoCompletion completion, queue->Wait());
    if (completion.error) return std::unexpected(*std::move(completion.error));
  }
  return {};
}

Result<std::vector<std::byte>> S3Storage::Read(std::string_view name, uint64_t limit_bytes) {
  CAIRN_CHECK(IsObjectName(name));
  const S3Object object = ObjectOf(name);
  const Result<HttpResponse> response =
      client().Perform({.operation = "read the object", .file = object.file, .key = object.key});
  // The client keeps no longer responses in memory.
  if (!response && response.error().code == ErrorCode::kUnimplemented) {
    return Storage::Read(name, limit_bytes);
  }
  CAIRN_TRY(response);
  const auto bytes = std::as_bytes(std::span(response->body));
  if (bytes.size() <= limit_bytes) return std::vector(bytes.begin(), bytes.end());
  return Fail(Error{.code = ErrorCode::kDataLoss,
                    .message = fmt::format("the object has {} bytes, more than the limit of {}",
                                           bytes.size(), limit_bytes),
                    .file = object.file});
}

Result<uint64_t> S3Storage::Size(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  const S3Object object = ObjectOf(name);
  CAIRN_TRY_ASSIGN(const HttpResponse response, client().Perform({.operation = "read the size",
                                                                  .file = object.file,
                                                                  .method = "HEAD",
                                                                  .key = object.key}));
  const std::string_view text = response.Header("content-length");
  uint64_t size_bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size_bytes);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Fail(Error{.code = ErrorCode::kUnavailable,
                      .message = "cannot read the size: the response has no Content-Length",
                      .file = object.file});
  }
  return size_bytes;
}

Result<std::vector<std::string>> S3Storage::List(std::string_view prefix) {
  CAIRN_CHECK(IsObjectPrefix(prefix));
  CAIRN_TRY_ASSIGN(std::vector<std::string> names, ListNames(prefix));
  std::erase_if(names, [](const std::string& name) { return !IsObjectName(name); });
  return names;
}

Result<std::vector<std::string>> S3Storage::ListNames(std::string_view prefix) {
  const S3Object folder = ObjectOf(prefix);
  Listing listing(folder.file, kListingTimeouts * settings_.timeout, Listing::Clock::now());
  for (std::string token;;) {
    // The parameters are in the order of their names, as the signature requires.
    const std::string query =
        fmt::format("{}{}{}list-type=2&prefix={}",
                    token.empty() ? "" : "continuation-token=", EncodeUri(token, false),
                    token.empty() ? "" : "&", EncodeUri(folder.key, false));
    CAIRN_TRY_ASSIGN(
        const HttpResponse response,
        client().Perform({.operation = "list objects", .file = folder.file, .query = query}));
    Result<S3Listing> page = ParseS3Listing(response.body);
    if (!page) return std::unexpected(std::move(page).error().WithFile(folder.file));
    for (const std::string& key : page->keys) {
      CAIRN_TRY(CheckListedKey(key, folder));
      listing.Add(key.substr(settings_.prefix.size()));
    }
    if (!page->is_truncated) break;
    token = page->next_token;
    CAIRN_TRY(listing.NextPage(token, Listing::Clock::now()));
  }
  std::vector<std::string> names;
  names.reserve(listing.names().size());
  while (!listing.names().empty()) {
    names.push_back(std::move(listing.names().extract(listing.names().begin()).value()));
  }
  return names;
}

Result<void> S3Storage::Remove(std::string_view name) {
  CAIRN_CHECK(IsObjectName(name));
  return RemoveKey(ObjectOf(name));
}

Result<void> S3Storage::RemoveKey(const S3Object& object) {
  const Result<HttpResponse> response = client().Perform({.operation = "remove the object",
                                                          .file = object.file,
                                                          .method = "DELETE",
                                                          .key = object.key});
  // Some servers report that there was no object, AWS does not.
  if (response || response.error().code == ErrorCode::kNotFound) return {};
  return std::unexpected(response.error());
}

Result<void> S3Storage::RemoveLeftovers(uint32_t end_epoch) {
  const auto abort = [this, end_epoch](ObjectKind kind) {
    return [this, kind, end_epoch] { return AbortUploadsBelow(kind, end_epoch); };
  };
  return RunRequests(*this, {abort(ObjectKind::kSegment), abort(ObjectKind::kTable),
                             abort(ObjectKind::kPage), [this] { return RemoveProbes(); }});
}

Result<void> S3Storage::RemoveProbes() {
  CAIRN_TRY_ASSIGN(const std::vector<std::string> names, ListNames(kProbePrefix));
  for (const std::string& name : names) {
    if (IsProbeName(name)) CAIRN_TRY(RemoveKey(ObjectOf(name)));
  }
  return {};
}

Result<void> S3Storage::AbortUploadsBelow(ObjectKind kind, uint32_t end_epoch) {
  const S3Object folder = ObjectOf(ObjectFolder(kind));
  const std::string prefix = fmt::format("prefix={}", EncodeUri(folder.key, false));
  Listing listing(folder.file, kListingTimeouts * settings_.timeout, Listing::Clock::now());
  std::vector<S3Listing::Upload> uploads;
  for (std::string query = prefix;;) {
    CAIRN_TRY_ASSIGN(const HttpResponse response, client().Perform({.operation = "list uploads",
                                                                    .file = folder.file,
                                                                    .query = query + "&uploads="}));
    Result<S3Listing> page = ParseS3Listing(response.body);
    if (!page) return std::unexpected(std::move(page).error().WithFile(folder.file));
    for (S3Listing::Upload& upload : page->uploads) {
      CAIRN_TRY(CheckListedKey(upload.key, folder));
      listing.Add(fmt::format("{} {}", upload.key, upload.upload_id));
      uploads.push_back(std::move(upload));
    }
    if (!page->is_truncated) break;
    query =
        fmt::format("key-marker={}&{}&upload-id-marker={}", EncodeUri(page->next_key_marker, false),
                    prefix, EncodeUri(page->next_upload_id_marker, false));
    CAIRN_TRY(listing.NextPage(query, Listing::Clock::now()));
  }
  const Listing::Clock::time_point deadline =
      Listing::Clock::now() + kListingTimeouts * settings_.timeout;
  for (const S3Listing::Upload& upload : uploads) {
    if (Listing::Clock::now() > deadline) {
      return Fail(Error{.code = ErrorCode::kUnavailable,
                        .message = "the server takes too long to abort uploads; the next open for "
                                   "writing aborts the others",
                        .file = folder.file});
    }
    const std::string_view name = std::string_view(upload.key).substr(settings_.prefix.size());
    const auto parsed = ParseObjectName(name);
    // Others belong to another program, or to a writer that has taken over the store.
    if (!parsed || parsed->id.epoch >= end_epoch) continue;
    const Result<void> aborted = AbortUpload(client(), ObjectOf(name), upload.upload_id);
    if (!aborted && aborted.error().code != ErrorCode::kNotFound) return aborted;
  }
  return {};
}

TransferSizes S3Storage::transfer_sizes() const {
  return {.request_bytes = settings_.part_bytes,
          .queue_depth = settings_.queue_depth,
          .small_requests = kSmallRequests,
          .max_gap_bytes = kMaxGapBytes};
}

Result<std::unique_ptr<IoQueue>> S3Storage::MakeQueue(uint32_t depth) {
  return std::make_unique<S3Queue>(
      client(), [this](std::string_view name) { return ObjectOf(name); }, depth);
}

Result<std::unique_ptr<Upload>> S3Storage::BeginUpload(std::string_view name,
                                                       uint64_t write_bytes) {
  CAIRN_CHECK(IsObjectName(name) && write_bytes > 0);
  return std::make_unique<S3Upload>(client(), ObjectOf(name), write_bytes);
}

Result<std::shared_ptr<Storage>> OpenS3Storage(const std::string& address,
                                               const S3Options& options) {
  CAIRN_TRY_ASSIGN(const S3Address parsed, ParseS3Address(address));
  const std::string profile_name = options.profile.empty() ? parsed.profile : options.profile;
  CAIRN_TRY_ASSIGN(AwsProfile profile, ReadAwsProfile(profile_name, &ProcessEnvironment));
  CAIRN_TRY_ASSIGN(S3Settings settings,
                   ResolveS3Settings(parsed, options, profile, &ProcessEnvironment));
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
