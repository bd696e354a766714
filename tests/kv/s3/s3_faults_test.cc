// S3Storage on a server that misbehaves.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/div.h"
#include "kv/io/internal/file.h"
#include "kv/storage/s3/internal/s3_storage.h"
#include "kv/storage/storage.h"
#include "tests/support/fake_s3.h"
#include "tests/support/forked_child.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"
#include "tests/support/upload_bytes.h"

namespace cairn::testing {
namespace {

using kv::internal::AsBytes;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr const char* kSecret = "SECRET-KEY-9f3b";
constexpr const char* kToken = "SESSION-TOKEN-77ac";
constexpr uint64_t kPartBytes = 5 << 20;

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Objects below "store/" of a FakeS3.
class S3FaultsTest : public ::testing::Test {
 protected:
  std::shared_ptr<kv::Storage> Open(std::chrono::milliseconds timeout) {
    kv::S3Options options;
    options.timeout = timeout;
    options.part_bytes = kPartBytes;
    options.credentials = [this]() -> Result<kv::S3Credentials> {
      ++credentials_count_;
      return kv::S3Credentials{.access_key_id = fmt::format("KEY{}", credentials_count_.load()),
                               .secret_access_key = kSecret,
                               .session_token = kToken,
                               .expiry = std::nullopt};
    };
    auto storage =
        kv::internal::OpenS3Storage("s3://bucket/store?endpoint=" + server_.endpoint(), options);
    CAIRN_EXPECT_OK(storage);
    return storage ? *storage : nullptr;
  }

  // The first `count` requests for which `matches` get this reply, and are not performed.
  void ReplyTo(
      int count, HttpReply reply,
      std::function<bool(const HttpCall&)> matches = [](const HttpCall&) { return true; }) {
    server_.SetBefore([left = count, reply = std::move(reply), matches = std::move(matches)](
                          const HttpCall& call) mutable -> std::optional<HttpReply> {
      if (left == 0 || !matches(call)) return std::nullopt;
      --left;
      return reply;
    });
  }

  // The first request for which `matches` is performed, but its response is lost.
  void LoseResponseTo(std::function<bool(const HttpCall&)> matches) {
    server_.SetAfter([lost = false, matches = std::move(matches)](const HttpCall& call,
                                                                  HttpReply* reply) mutable {
      if (matches(call) && !std::exchange(lost, true)) reply->cut_at_once = true;
    });
  }

  // Writes "segments/a.seg" through a queue.
  Result<void> Upload(std::span<std::byte> bytes, uint64_t write_bytes = kPartBytes,
                      uint32_t depth = 8) {
    return UploadBytes(*storage_, "segments/a.seg", bytes, write_bytes, depth);
  }

  FakeS3 server_;
  std::atomic<int> credentials_count_ = 0;
  const std::shared_ptr<kv::Storage> storage_ = Open(std::chrono::seconds(20));
};

bool IsCompletion(const HttpCall& call) {
  return call.method == "POST" && !call.Parameter("uploads");
}

struct Fault {
  const char* name;
  HttpReply reply;
};

const Fault kTransientFaults[] = {
    {"status 500", S3ErrorReply(500, "InternalError")},
    {"status 502", {.status = 502, .body = "<html>Bad Gateway</html>"}},
    {"status 503", S3ErrorReply(503, "SlowDown")},
    {"status 504", {.status = 504}},
    {"status 429", {.status = 429}},
    {"status 408", S3ErrorReply(408, "RequestTimeout")},
    {"status 409", S3ErrorReply(409, "ConditionalRequestConflict")},
    {"a request that was too slow", S3ErrorReply(400, "RequestTimeout")},
    {"bytes that changed on their way", S3ErrorReply(400, "BadDigest")},
    {"a connection that is cut", {.cut_at_once = true}},
    {"a response that is cut",
     {.headers = {"Content-Length: 100"}, .body = "<Error>", .cut_after_bytes = 3}},
};

TEST_F(S3FaultsTest, EveryOperationSurvivesTransientFaults) {
  for (const Fault& fault : kTransientFaults) {
    SCOPED_TRACE(fault.name);
    ReplyTo(2, fault.reply);
    CAIRN_EXPECT_OK(storage_->Put("lease", AsBytes("first")));
    ReplyTo(2, fault.reply);
    CAIRN_EXPECT_OK(storage_->PutIfAbsent("roots/1.root", AsBytes("root")));
    ReplyTo(2, fault.reply);
    std::array<std::byte, 4> target{};
    CAIRN_EXPECT_OK(storage_->ReadRange("roots/1.root", 0, target));
    EXPECT_EQ(Text(target), "root");
    HttpReply to_head = fault.reply;  // has no body that could be cut or contain a code
    to_head.cut_at_once |= fault.reply.cut_after_bytes.has_value();
    if (to_head.status == 400) to_head.status = 503;
    ReplyTo(2, to_head);
    CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t size_bytes, storage_->Size("lease"));
    EXPECT_EQ(size_bytes, 5u);
    ReplyTo(2, fault.reply);
    CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, storage_->List(""));
    EXPECT_THAT(names, SizeIs(2));
    for (const char* name : {"lease", "roots/1.root"}) {
      ReplyTo(2, fault.reply);
      CAIRN_EXPECT_OK(storage_->Remove(name));
    }
    EXPECT_THAT(server_.Objects(), IsEmpty());
  }
}

TEST_F(S3FaultsTest, UploadsSurviveTransientFaultsOfEveryRequest) {
  SeededRandom random;
  std::vector<std::byte> bytes = random.Bytes(2 * kPartBytes + 1000);
  const std::vector<std::pair<const char*, std::function<bool(const HttpCall&)>>> requests = {
      {"create", [](const HttpCall& call) { return call.Parameter("uploads").has_value(); }},
      {"part", [](const HttpCall& call) { return call.Parameter("partNumber").has_value(); }},
      {"complete", IsCompletion},
  };
  for (const Fault& fault : kTransientFaults) {
    for (const auto& [name, matches] : requests) {
      SCOPED_TRACE(fmt::format("{}, {}", name, fault.name));
      ReplyTo(2, fault.reply, matches);
      CAIRN_EXPECT_OK(Upload(bytes));
      EXPECT_TRUE(server_.Objects()["store/segments/a.seg"] == Text(bytes));
      EXPECT_EQ(server_.UploadCount(), 0u);
    }
  }
}

// S3 has no parts of less than 5 MiB, and the blocks of pools may be shorter.
TEST_F(S3FaultsTest, WritesThatAreShorterThanAPartAreGathered) {
  SeededRandom random;
  std::vector<std::byte> bytes = random.Bytes((20 << 20) + 17);
  for (const uint64_t write_bytes : {uint64_t{4096}, uint64_t{4} << 20}) {
    const uint64_t part_bytes = RoundUp(kPartBytes, write_bytes);
    for (const uint64_t size : {uint64_t{0}, uint64_t{1}, part_bytes - 1, part_bytes,
                                part_bytes + 1, part_bytes + write_bytes, bytes.size()}) {
      for (const uint32_t depth : {1, 8}) {
        SCOPED_TRACE(
            fmt::format("{} bytes in writes of {}, {} at a time", size, write_bytes, depth));
        CAIRN_EXPECT_OK(Upload(std::span(bytes).first(size), write_bytes, depth));
        EXPECT_TRUE(server_.Objects()["store/segments/a.seg"] == Text(bytes).substr(0, size));
        EXPECT_EQ(server_.UploadCount(), 0u);
      }
    }
  }
}

// Another object may have the name by the time when the server performs the request.
TEST_F(S3FaultsTest, AnUploadThatFailsRemovesNoObject) {
  std::vector<std::byte> bytes(1000);
  for (const uint64_t write_bytes : {uint64_t{100}, uint64_t{4096}}) {
    ReplyTo(1'000'000, S3ErrorReply(403, "AccessDenied"),
            [](const HttpCall& call) { return call.method == "PUT"; });
    EXPECT_THAT(Upload(bytes, write_bytes), IsError(ErrorCode::kUnavailable, "segments/a.seg"));
    {
      CAIRN_ASSERT_OK_AND_ASSIGN(const auto unfinished,
                                 storage_->BeginUpload("segments/a.seg", write_bytes));
    }
  }
  for (const HttpCall& call : server_.Calls()) EXPECT_NE(call.method, "DELETE") << call.target;
}

TEST_F(S3FaultsTest, StatusesAndCodesHaveTheirMeaning) {
  struct Case {
    int status;
    const char* code;
    std::optional<ErrorCode> error;  // nothing: another attempt succeeds
  };
  using enum ErrorCode;
  const Case cases[] = {
      {404, "NoSuchKey", kNotFound},
      {404, "", kNotFound},
      {404, "NoSuchBucket", kNotFound},
      {412, "PreconditionFailed", kConflict},
      {412, "", kConflict},
      {416, "InvalidRange", kDataLoss},
      {401, "", kUnavailable},
      {403, "AccessDenied", kUnavailable},
      {403, "RequestTimeTooSkewed", kFailedPrecondition},
      {403, "SignatureDoesNotMatch", kUnavailable},
      {403, "InvalidAccessKeyId", std::nullopt},
      {400, "ExpiredToken", std::nullopt},
      {400, "Unknown", kUnavailable},
      {500, "", std::nullopt},
      {501, "NotImplemented", kUnimplemented},
      {507, "", kResourceExhausted},
      {200, "InternalError", std::nullopt},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(fmt::format("{} {}", c.status, c.code));
    const size_t calls_before = server_.Calls().size();
    ReplyTo(1, *c.code == 0 ? HttpReply{.status = c.status} : S3ErrorReply(c.status, c.code));
    const Result<void> put = storage_->Put("lease", AsBytes("1"));
    if (c.error) {
      EXPECT_THAT(put, IsError(*c.error, "cannot put the object"));
    } else {
      CAIRN_EXPECT_OK(put);
    }
    EXPECT_EQ(server_.Calls().size() - calls_before, c.error ? 1u : 2u);
  }
}

TEST_F(S3FaultsTest, ErrorsNameWhatWhereAndWhatToDo) {
  ReplyTo(1, S3ErrorReply(403, "AccessDenied", "Not\nyou"));
  const Result<void> refused = storage_->Put("lease", AsBytes("1"));
  EXPECT_THAT(refused, IsError(ErrorCode::kUnavailable,
                               fmt::format("cannot put the object: {} answered 403 AccessDenied: "
                                           "Not you (request REQUEST-1); ",
                                           server_.endpoint())));
  EXPECT_THAT(refused, IsError(ErrorCode::kUnavailable, "s3:PutObject"));
  ReplyTo(1, S3ErrorReply(400, "X", std::string(10'000, 'x')));
  EXPECT_LT(storage_->Put("lease", AsBytes("1")).error().message.size(), 1000u);
}

TEST_F(S3FaultsTest, APageOfAProxyIsNotTheObject) {
  CAIRN_ASSERT_OK(storage_->Put("tables/a.sst", AsBytes("0123")));
  const HttpReply page{.headers = {"Content-Type: text/html; charset=utf-8"}, .body = "page"};
  std::array<std::byte, 4> target{};
  ReplyTo(1, page);
  CAIRN_EXPECT_OK(storage_->ReadRange("tables/a.sst", 0, target));
  EXPECT_EQ(Text(target), "0123");
  for (const char* header : {"x-amz-request-id: 1", "ETag: \"1\""}) {
    HttpReply of_server = page;
    of_server.headers.emplace_back(header);
    ReplyTo(1, of_server);
    CAIRN_EXPECT_OK(storage_->ReadRange("tables/a.sst", 0, target));
    EXPECT_EQ(Text(target), "page") << header;
  }
  const size_t calls_before = server_.Calls().size();
  ReplyTo(1, {.headers = page.headers});
  CAIRN_EXPECT_OK(storage_->Put("lease", AsBytes("1"))) << "as Google Cloud Storage answers";
  EXPECT_EQ(server_.Calls().size() - calls_before, 1u);
}

TEST_F(S3FaultsTest, AnUploadSurvivesConnectionsThatAreCutInTheMiddleOfAPart) {
  std::vector<std::byte> bytes(3 * kPartBytes, std::byte{7});
  for (const size_t cut_bytes : {size_t{1}, size_t{100'000}, size_t{kPartBytes - 1}}) {
    server_.server().CutNextRequestAfter(cut_bytes);
    CAIRN_EXPECT_OK(Upload(bytes));
    EXPECT_TRUE(server_.Objects()["store/segments/a.seg"] == Text(bytes));
  }
}

TEST_F(S3FaultsTest, AReadSurvivesAResponseThatIsCutInTheMiddle) {
  SeededRandom random;
  std::vector<std::byte> bytes = random.Bytes(1 << 20);
  CAIRN_ASSERT_OK(storage_->Put("tables/a.sst", bytes));
  int left_count = 3;
  server_.SetAfter([&](const HttpCall& call, HttpReply* reply) {
    if (call.method == "GET" && left_count-- > 0) reply->cut_after_bytes = 300'000;
  });
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> found,
                             storage_->Read("tables/a.sst", 2 << 20));
  EXPECT_TRUE(found == bytes);
}

TEST_F(S3FaultsTest, ACompletionWhoseResponseIsLostHasHappened) {
  std::vector<std::byte> bytes(2 * kPartBytes, std::byte{1});
  LoseResponseTo(IsCompletion);
  CAIRN_EXPECT_OK(Upload(bytes));  // the second attempt gets NoSuchUpload
  EXPECT_TRUE(server_.Objects()["store/segments/a.seg"] == Text(bytes));
}

TEST_F(S3FaultsTest, AnUploadThatTheServerHasAbortedIsUnavailable) {
  std::vector<std::byte> bytes(2 * kPartBytes, std::byte{1});
  for (const char* const method : {"PUT", "POST"}) {
    ReplyTo(1, S3ErrorReply(404, "NoSuchUpload"), [method](const HttpCall& call) {
      return call.method == method && call.Parameter("uploadId");
    });
    EXPECT_THAT(Upload(bytes), IsError(ErrorCode::kUnavailable, "the upload was aborted"));
    EXPECT_THAT(server_.Objects(), IsEmpty());
  }
}

TEST_F(S3FaultsTest, ACompletionThatFailsWithStatus200IsRepeated) {
  std::vector<std::byte> bytes(kPartBytes, std::byte{1});
  ReplyTo(2, S3ErrorReply(200, "InternalError"), IsCompletion);
  CAIRN_EXPECT_OK(Upload(bytes));
  EXPECT_TRUE(server_.Objects()["store/segments/a.seg"] == Text(bytes));
}

TEST_F(S3FaultsTest, APutIfAbsentWhoseResponseIsLostIsAConflict) {
  LoseResponseTo([](const HttpCall& call) { return call.method == "PUT"; });
  EXPECT_THAT(storage_->PutIfAbsent("roots/1.root", AsBytes("mine")),
              IsError(ErrorCode::kConflict, "roots/1.root"));
  EXPECT_EQ(server_.Objects()["store/roots/1.root"], "mine");
}

TEST_F(S3FaultsTest, RefusesToCreateAStoreOnAServerThatIgnoresConditions) {
  server_.SetIgnoresConditions(true);
  EXPECT_THAT(storage_->PutIfAbsent("CAIRN", AsBytes("identity")),
              IsError(ErrorCode::kFailedPrecondition, server_.endpoint()));
  EXPECT_THAT(server_.Objects(), IsEmpty()) << "neither the store nor the probe may remain";
}

TEST_F(S3FaultsTest, WhatAKilledCreationLeftIsRemovedAndNothingElse) {
  for (const char* foreign :
       {"store/.probe-0123456789abcde", "store/.probe-0123456789ABCDEF", "store/.probe-x",
        "store/.probe-0123456789abcdef0", "store/.probe-0123456789abcdef/x", "store/photo.jpg",
        ".probe-0123456789abcdef", "store2/.probe-0123456789abcdef"}) {
    server_.AddObject(foreign, "foreign");
  }
  const auto before = server_.Objects();
  server_.AddObject("store/.probe-0123456789abcdef", "x");
  CAIRN_ASSERT_OK(storage_->RemoveLeftovers(~0u));
  EXPECT_EQ(server_.Objects(), before);
}

// What removes leftovers cannot know that the object of a test is one of a process that is alive.
TEST_F(S3FaultsTest, ATestOfTheServerSurvivesTheRemovalOfItsObject) {
  int put_count = 0;
  server_.SetBefore([&](const HttpCall& call) -> std::optional<HttpReply> {
    if (call.method != "PUT" || ++put_count != 2) return std::nullopt;
    return HttpReply{
        .headers = {"ETag: \"1\""}};  // the second put of the object, which was removed
  });
  CAIRN_EXPECT_OK(storage_->PutIfAbsent("CAIRN", AsBytes("identity")));
  EXPECT_EQ(put_count, 5);
  EXPECT_THAT(storage_->PutIfAbsent("CAIRN", AsBytes("other")),
              IsError(ErrorCode::kConflict, "CAIRN"));
  EXPECT_THAT(server_.Objects(),
              ::testing::ElementsAre(::testing::Pair("store/CAIRN", "identity")));
}

TEST_F(S3FaultsTest, ExpiredCredentialsAreObtainedAgainOnce) {
  CAIRN_ASSERT_OK(storage_->Put("lease", AsBytes("1")));
  EXPECT_EQ(credentials_count_, 1);
  server_.SetBefore([](const HttpCall& call) -> std::optional<HttpReply> {
    if (call.Header("authorization").find("KEY1/") == std::string::npos) return std::nullopt;
    return S3ErrorReply(400, "ExpiredToken");
  });
  CAIRN_EXPECT_OK(storage_->Put("lease", AsBytes("2")));
  EXPECT_EQ(credentials_count_, 2);
  ReplyTo(100, S3ErrorReply(400, "ExpiredToken"));
  EXPECT_THAT(storage_->Put("lease", AsBytes("3")),
              IsError(ErrorCode::kUnavailable, "the credentials have expired; renew them"));
  EXPECT_EQ(credentials_count_, 3);
}

// Otherwise a server could have requests signed for other hosts, objects and operations.
TEST_F(S3FaultsTest, ARedirectIsAnErrorThatNamesBothHostsAndSendsNothing) {
  const FakeS3 other;
  const std::string host = other.endpoint().substr(std::string_view("http://").size());
  for (const int status : {301, 302, 303, 307, 308}) {
    ReplyTo(1, {.status = status,
                .headers = {"Location: http://user:" + std::string(kSecret) + "@" + host +
                            "/bucket/store/roots/1.root?uploadId=1"}});
    const Result<void> removed = storage_->Remove("lease");
    EXPECT_THAT(removed, IsError(ErrorCode::kFailedPrecondition, host));
    EXPECT_THAT(removed, IsError(ErrorCode::kFailedPrecondition, server_.endpoint()));
    EXPECT_THAT(removed.error().ToString(), Not(HasSubstr(kSecret)));
  }
  EXPECT_THAT(other.Calls(), IsEmpty());
  ReplyTo(1000, {.status = 307, .headers = {"Location: " + server_.endpoint() + "/bucket/loop"}});
  EXPECT_THAT(storage_->Put("lease", AsBytes("1")),
              IsError(ErrorCode::kFailedPrecondition, "answered 307"));
  EXPECT_THAT(server_.Calls(), SizeIs(6));
}

TEST_F(S3FaultsTest, AWrongRegionIsAnErrorThatNamesTheRightOne) {
  HttpReply reply = S3ErrorReply(301, "PermanentRedirect");
  reply.headers.emplace_back("x-amz-bucket-region: eu-west-3");
  for (const int status : {301, 307}) {
    reply.status = status;
    ReplyTo(1, reply);
    EXPECT_THAT(storage_->Put("lease", AsBytes("1")),
                IsError(ErrorCode::kFailedPrecondition, "set AWS_REGION=eu-west-3"));
  }
}

TEST_F(S3FaultsTest, AServerThatIgnoresRangesIsRefused) {
  CAIRN_ASSERT_OK(storage_->Put("tables/a.sst", AsBytes("0123456789")));
  std::array<std::byte, 4> target{};
  ReplyTo(100, {.status = 200, .body = "0123456789"});
  for (const uint64_t offset_bytes : {0, 3, 6}) {
    EXPECT_THAT(storage_->ReadRange("tables/a.sst", offset_bytes, target),
                IsError(ErrorCode::kUnimplemented, "ignores ranges"));
  }
}

// Changes the first response to a read of [2, 6) of an object of 10 bytes.
TEST_F(S3FaultsTest, OnlyTheRequestedRangeIsReturned) {
  CAIRN_ASSERT_OK(storage_->Put("tables/a.sst", AsBytes("0123456789")));
  std::array<std::byte, 4> target{};
  const auto read = [&](const std::string& range, const std::string& body) {
    bool changed = false;
    server_.SetAfter([=](const HttpCall&, HttpReply* reply) mutable {
      if (std::exchange(changed, true)) return;
      reply->headers = {"Content-Range: " + range};
      reply->body = body;
    });
    return storage_->ReadRange("tables/a.sst", 2, target);
  };
  CAIRN_EXPECT_OK(read("bytes 2-5/*", "abcd"));
  EXPECT_EQ(Text(target), "abcd");
  EXPECT_THAT(read("bytes 2-4/5", "234"), IsError(ErrorCode::kDataLoss, "the object has 5 bytes"));
  for (const char* range : {"", "bytes 4-7/10", "bytes 2-4/10", "bytes 5-2/10", "bytes 2-5",
                            "bytes */10", "items 2-5/10"}) {
    CAIRN_EXPECT_OK(read(range, "4567")) << range;
    EXPECT_EQ(Text(target), "2345") << range;
  }
  for (const char* range : {"bytes 2-4/10", "bytes 2-4/*"}) {  // the object does not end there
    CAIRN_EXPECT_OK(read(range, "234")) << range;
    EXPECT_EQ(Text(target), "2345") << range;
  }
}

TEST_F(S3FaultsTest, AServerThatNeverRecoversFailsAtTheDeadline) {
  ReplyTo(1'000'000, S3ErrorReply(503, "SlowDown"));
  Result<void> put;
  size_t attempts = 0;
  // On a busy machine, a deadline may come before the third attempt.
  for (std::chrono::milliseconds timeout(700); attempts < 3 && timeout < std::chrono::minutes(1);
       timeout *= 4) {
    const size_t before = server_.Calls().size();
    put = Open(timeout)->Put("lease", AsBytes("1"));
    attempts = server_.Calls().size() - before;
  }
  EXPECT_THAT(put, IsError(ErrorCode::kUnavailable, "attempts in"));
  EXPECT_GE(attempts, 3u);
}

TEST_F(S3FaultsTest, AnOverwriteIsNotRepeated) {
  const size_t before = server_.Calls().size();
  ReplyTo(1, S3ErrorReply(503, "SlowDown"));
  EXPECT_THAT(storage_->Overwrite("hint", AsBytes("1")), IsError(ErrorCode::kUnavailable, "rate"));
  EXPECT_THAT(server_.Calls(), SizeIs(before + 1));
  CAIRN_EXPECT_OK(storage_->Overwrite("hint", AsBytes("2")));
}

TEST_F(S3FaultsTest, AServerThatDoesNotAnswerOrSendsAByteAtATimeFailsAtTheDeadline) {
  const auto storage = Open(std::chrono::milliseconds(1000));
  CAIRN_ASSERT_OK(storage->Put("lease", AsBytes("1")));
  for (const HttpReply& reply : {HttpReply{.delay = std::chrono::seconds(100)},
                                 HttpReply{.body = std::string(100'000, 'x'),
                                           .pause_per_byte = std::chrono::milliseconds(5)}}) {
    ReplyTo(1'000'000, reply);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(storage->Read("lease", 1 << 20),
                IsError(ErrorCode::kUnavailable, "no complete response"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  }
}

TEST_F(S3FaultsTest, AServerThatRequestsALongPauseFailsAtOnce) {
  HttpReply reply = S3ErrorReply(503, "SlowDown");
  reply.headers.emplace_back("Retry-After: 4000000000");
  ReplyTo(1'000'000, reply);
  EXPECT_THAT(storage_->Put("lease", AsBytes("1")), IsError(ErrorCode::kUnavailable, "SlowDown"));
  EXPECT_THAT(server_.Calls(), SizeIs(1));
}

TEST_F(S3FaultsTest, EndlessHeadersAreAnError) {
  HttpReply reply;
  for (int i = 0; i < 100; ++i) {
    reply.headers.push_back(fmt::format("x-{}: {}", i, std::string(10'000, 'a')));
  }
  ReplyTo(1'000'000, reply);
  EXPECT_THAT(storage_->Put("lease", AsBytes("1")), IsError(ErrorCode::kUnimplemented, "longer"));
}

TEST_F(S3FaultsTest, AServerThatIsNotThereFailsSoonerThanTheDeadline) {
  kv::S3Options options;
  options.credentials = [] {
    return kv::S3Credentials{.access_key_id = "KEY", .secret_access_key = kSecret};
  };
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto storage,
      kv::internal::OpenS3Storage("s3://bucket/store?endpoint=http://127.0.0.1:1", options));
  EXPECT_THAT(storage->Size("lease"), IsError(ErrorCode::kUnavailable, "http://127.0.0.1:1"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(S3FaultsTest, ListsEveryPage) {
  for (int i = 0; i < 25; ++i) {
    CAIRN_ASSERT_OK(storage_->Put(fmt::format("roots/{}", i), AsBytes("")));
  }
  server_.SetPageSize(4);
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, storage_->List("roots/"));
  EXPECT_THAT(names, SizeIs(25));
}

// Returns the beginning of a page after which there is another one.
std::string PageBefore(const std::string& token, const std::string& contents) {
  return fmt::format(
      "<ListBucketResult>{}<IsTruncated>true</IsTruncated><NextContinuationToken>{}"
      "</NextContinuationToken></ListBucketResult>",
      contents, token);
}

TEST_F(S3FaultsTest, AListingThatDoesNotEndIsAnError) {
  const std::string key = "<Contents><Key>store/roots/1</Key></Contents>";
  std::atomic<int> count = 0;
  const auto answer = [&](std::function<std::string(int)> page) {
    count = 0;
    server_.SetBefore(
        [&count, page = std::move(page)](const HttpCall&) -> std::optional<HttpReply> {
          return HttpReply{.body = page(count++)};
        });
  };
  // The same token again and again.
  answer([&](int) { return PageBefore("same", key); });
  EXPECT_THAT(storage_->List("roots/"), IsError(ErrorCode::kUnavailable, "does not end"));
  EXPECT_EQ(count, 2);
  // Other tokens, with the same keys or with none.
  for (const std::string& contents : {key, std::string()}) {
    answer([&](int i) { return PageBefore(std::to_string(i % 3), contents); });
    EXPECT_THAT(storage_->List("roots/"), IsError(ErrorCode::kUnavailable, "does not end"));
    EXPECT_LT(count, 200);
  }
  answer([](int i) {
    return fmt::format(
        "<ListMultipartUploadsResult><Upload><Key>store/segments/a</Key><UploadId>1"
        "</UploadId></Upload><IsTruncated>true</IsTruncated><NextKeyMarker>{}"
        "</NextKeyMarker></ListMultipartUploadsResult>",
        i % 3);
  });
  EXPECT_THAT(storage_->RemoveLeftovers(~0u), IsError(ErrorCode::kUnavailable, "does not end"));
  EXPECT_LT(count, 800);
}

TEST_F(S3FaultsTest, AListingMayHaveEmptyPages) {
  std::atomic<int> count = 0;
  server_.SetBefore([&](const HttpCall&) -> std::optional<HttpReply> {
    const int i = count++;
    if (i == 20) return std::nullopt;
    return HttpReply{.body = PageBefore(std::to_string(i), "")};
  });
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, storage_->List("roots/"));
  EXPECT_THAT(names, IsEmpty());
}

// Its prefix was ignored, so something else may be missing.
TEST_F(S3FaultsTest, AListingWithOtherKeysIsAnError) {
  ReplyTo(1, {.body = "<ListBucketResult><Contents><Key>other/roots/1</Key></Contents>"
                      "<IsTruncated>false</IsTruncated></ListBucketResult>"});
  EXPECT_THAT(storage_->List("roots/"), IsError(ErrorCode::kUnavailable, "\"other/roots/1\""));
}

TEST_F(S3FaultsTest, AListingThatTakesTooLongIsAnError) {
  server_.SetBefore([page = 0](const HttpCall&) mutable -> std::optional<HttpReply> {
    const auto key = fmt::format("<Contents><Key>store/roots/{}</Key></Contents>", page);
    if (++page == 100) return std::nullopt;  // the last one
    return HttpReply{.body = PageBefore(std::to_string(page), key),
                     .delay = std::chrono::milliseconds(60)};
  });
  // On a busy machine, one of its requests may already take too long.
  EXPECT_THAT(Open(std::chrono::milliseconds(300))->List("roots/"),
              IsError(ErrorCode::kUnavailable, "roots/"));
}

TEST_F(S3FaultsTest, AListingThatIsNotOneIsAnError) {
  for (const char* body : {"", "<html/>", "not XML", "<ListBucketResult><Contents>",
                           "<ListBucketResult><IsTruncated>true"
                           "</IsTruncated></ListBucketResult>"}) {
    ReplyTo(1, {.body = body});
    EXPECT_THAT(storage_->List("roots/"), IsError(ErrorCode::kUnavailable, "is not a")) << body;
  }
}

TEST_F(S3FaultsTest, LeftoversAreAbortedAndObjectsAndUploadsOfOthersRemain) {
  std::vector<std::byte> bytes(kPartBytes + 1);
  ReplyTo(1'000'000, S3ErrorReply(403, "AccessDenied"),
          [](const HttpCall& call) { return call.method == "DELETE"; });
  // The second one is that of a writer that has taken over the store from the one of epoch 2.
  for (const char* name : {"tables/00000001-0123456789abcdef00000000.sst",
                           "tables/00000003-0123456789abcdef00000000.sst", "tables/movie.mp4"}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, storage_->Create(name));
    CAIRN_ASSERT_OK(writer->Append(bytes));
    CAIRN_ASSERT_OK(writer->Append(bytes));
  }
  EXPECT_EQ(server_.UploadCount(), 3u) << "the aborts of the writers were refused";
  server_.SetBefore(nullptr);
  CAIRN_ASSERT_OK(storage_->Put("tables/b.sst", AsBytes("b")));
  CAIRN_ASSERT_OK(storage_->RemoveLeftovers(/*end_epoch=*/2));
  EXPECT_EQ(server_.UploadCount(), 2u);
  CAIRN_ASSERT_OK(storage_->RemoveLeftovers(/*end_epoch=*/4));
  EXPECT_EQ(server_.UploadCount(), 1u);
  EXPECT_THAT(server_.Objects(), SizeIs(1));
}

TEST_F(S3FaultsTest, ADigestIsPartOfEveryWrite) {
  std::vector<std::byte> bytes(kPartBytes + 1);
  CAIRN_ASSERT_OK(storage_->Put("lease", AsBytes("123456789")));
  CAIRN_ASSERT_OK(Upload(bytes));
  int count = 0;
  for (const HttpCall& call : server_.Calls()) {
    if (call.method != "PUT") continue;
    ++count;
    EXPECT_THAT(call.Header("x-amz-checksum-crc32"), SizeIs(8)) << call.target;
    // The check value of CRC-32 (CBF43926) in base64.
    if (call.target == "/bucket/store/lease") {
      EXPECT_EQ(call.Header("x-amz-checksum-crc32"), "y/Q5Jg==");
    }
  }
  EXPECT_EQ(count, 3);
}

TEST_F(S3FaultsTest, ConnectionsAreUsedAgain) {
  for (int i = 0; i < 50; ++i) CAIRN_ASSERT_OK(storage_->Put("lease", AsBytes("1")));
  EXPECT_EQ(server_.server().connection_count(), 1);
}

TEST_F(S3FaultsTest, AQueueThatIsDestroyedDoesNotWaitForSlowReads) {
  CAIRN_ASSERT_OK(storage_->Put("tables/a.sst", AsBytes("0123456789")));
  ReplyTo(1'000'000, {.delay = std::chrono::hours(1)});
  std::array<std::byte, 4> target{};
  {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto queue, storage_->MakeQueue(2));
    CAIRN_ASSERT_OK(queue->Submit(
        {.object = "tables/a.sst", .data = target.data(), .length_bytes = target.size()}));
  }
}

TEST_F(S3FaultsTest, AForkedChildReadsWithItsOwnConnections) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not support threads in a forked child";
#endif
  CAIRN_ASSERT_OK(storage_->Put("lease", AsBytes("1")));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto queue, storage_->MakeQueue(2));
  ForkedChild child([&] {
    std::array<std::byte, 1> target{};
    const auto submitted =
        queue->Submit({.object = "lease", .data = target.data(), .length_bytes = target.size()});
    return storage_->ReadRange("lease", 0, target) && !submitted &&
           submitted.error().code == ErrorCode::kFailedPrecondition;
  });
  EXPECT_EQ(child.Wait(), 0);
  CAIRN_EXPECT_OK(storage_->Put("lease", AsBytes("2")));
}

// Provokes errors of all kinds, and looks for the secrets in them.
TEST_F(S3FaultsTest, NoErrorContainsASecret) {
  const auto storage = Open(std::chrono::milliseconds(150));
  std::vector<HttpReply> replies;
  for (const Fault& fault : kTransientFaults) replies.push_back(fault.reply);
  for (const char* code :
       {"AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId", "ExpiredToken",
        "InvalidToken", "RequestTimeTooSkewed", "NoSuchBucket", "NotImplemented", "Other"}) {
    replies.push_back(S3ErrorReply(400, code));
  }
  replies.push_back({.status = 307, .headers = {"Location: nonsense"}});
  replies.push_back({.status = 403});
  std::vector<std::string> errors;
  for (const HttpReply& reply : replies) {
    ReplyTo(1'000'000, reply);
    std::array<std::byte, 1> target{};
    const auto collect = [&](const auto& result) {
      ASSERT_FALSE(result);
      errors.push_back(result.error().ToString());
    };
    collect(storage->Put("lease", AsBytes("1")));
    collect(storage->PutIfAbsent("CAIRN", AsBytes("1")));
    collect(storage->ReadRange("lease", 0, target));
    collect(storage->List(""));
  }
  EXPECT_THAT(errors, SizeIs(4 * replies.size()));
  EXPECT_THAT(errors, Not(Contains(HasSubstr(kSecret))));
  EXPECT_THAT(errors, Not(Contains(HasSubstr(kToken))));
  for (const HttpCall& call : server_.Calls()) {
    EXPECT_EQ(call.Header("x-amz-security-token"), kToken);
    for (const auto& [name, value] : call.headers) EXPECT_THAT(value, Not(HasSubstr(kSecret)));
  }
}

}  // namespace
}  // namespace cairn::testing
