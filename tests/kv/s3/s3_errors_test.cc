// What responses mean.

#include "kv/storage/s3/internal/s3_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kv/storage/s3/internal/s3_xml.h"
#include "tests/support/result_matchers.h"

namespace cairn::testing {
namespace {

using kv::internal::CompleteUploadBody;
using kv::internal::HttpFailure;
using kv::internal::HttpResponse;
using kv::internal::JudgeRange;
using kv::internal::JudgeResponse;
using kv::internal::ParseS3Listing;
using kv::internal::S3Outcome;
using kv::internal::S3Verdict;
using ::testing::HasSubstr;
using ::testing::Not;

HttpResponse Response(int status, const std::string& code = "", const std::string& message = "") {
  HttpResponse response;
  response.status = status;
  if (!code.empty()) {
    response.body = "<?xml version=\"1.0\"?>\n<Error xmlns=\"x\"><Code>" + code +
                    "</Code><Message>" + message + "</Message><RequestId>R1</RequestId></Error>";
  }
  return response;
}

S3Outcome Judge(const HttpResponse& response) {
  return JudgeResponse(response, "put the object", "https://endpoint", "r-1");
}

TEST(S3ErrorsTest, APageOfAProxyIsNotTheObject) {
  HttpResponse response = Response(200);
  response.headers = {{"content-type", "text/html; charset=utf-8"}};
  EXPECT_EQ(Judge(response).verdict, S3Verdict::kSuccess) << "a PUT of Google Cloud Storage";
  response.target_bytes = 100;
  const S3Outcome outcome = Judge(response);
  EXPECT_EQ(outcome.verdict, S3Verdict::kRetry);
  EXPECT_EQ(outcome.error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(outcome.error.message, HasSubstr("a page of a proxy"));
  for (const char* name : {"x-amz-request-id", "etag"}) {
    HttpResponse of_server = response;
    of_server.headers.emplace_back(name, "R1");
    EXPECT_EQ(Judge(of_server).verdict, S3Verdict::kSuccess) << name;
  }
}

TEST(S3ErrorsTest, StatusesAndCodesHaveTheirMeaning) {
  struct Case {
    int status;
    const char* code;
    S3Verdict verdict;
    ErrorCode error;
  };
  const Case cases[] = {
      {404, "NoSuchKey", S3Verdict::kFailed, ErrorCode::kNotFound},
      {404, "", S3Verdict::kFailed, ErrorCode::kNotFound},
      {404, "NoSuchBucket", S3Verdict::kFailed, ErrorCode::kNotFound},
      {412, "PreconditionFailed", S3Verdict::kFailed, ErrorCode::kConflict},
      {412, "", S3Verdict::kFailed, ErrorCode::kConflict},
      {409, "ConditionalRequestConflict", S3Verdict::kRetry, ErrorCode::kUnavailable},
      {416, "InvalidRange", S3Verdict::kFailed, ErrorCode::kDataLoss},
      {403, "AccessDenied", S3Verdict::kFailed, ErrorCode::kUnavailable},
      {403, "RequestTimeTooSkewed", S3Verdict::kFailed, ErrorCode::kFailedPrecondition},
      {403, "InvalidAccessKeyId", S3Verdict::kRetryWithOther, ErrorCode::kUnavailable},
      {400, "ExpiredToken", S3Verdict::kRetryWithOther, ErrorCode::kUnavailable},
      {400, "RequestTimeout", S3Verdict::kRetry, ErrorCode::kUnavailable},
      {400, "Unknown", S3Verdict::kFailed, ErrorCode::kUnavailable},
      {500, "", S3Verdict::kRetry, ErrorCode::kUnavailable},
      {503, "SlowDown", S3Verdict::kRetry, ErrorCode::kUnavailable},
      {501, "NotImplemented", S3Verdict::kFailed, ErrorCode::kUnimplemented},
      {200, "InternalError", S3Verdict::kRetry, ErrorCode::kUnavailable},
      {507, "", S3Verdict::kFailed, ErrorCode::kResourceExhausted},
  };
  for (const Case& c : cases) {
    const S3Outcome outcome = Judge(Response(c.status, c.code));
    EXPECT_EQ(outcome.verdict, c.verdict) << c.status << " " << c.code;
    EXPECT_EQ(outcome.error.code, c.error) << c.status << " " << c.code;
  }
  EXPECT_EQ(Judge(Response(200)).verdict, S3Verdict::kSuccess);
  EXPECT_EQ(Judge(Response(204)).verdict, S3Verdict::kSuccess);
}

TEST(S3ErrorsTest, MessagesNameWhatWhereAndWhatToDo) {
  const std::string text = Judge(Response(403, "AccessDenied", "Not\nyou")).error.message;
  EXPECT_THAT(text, HasSubstr("cannot put the object: https://endpoint answered 403 AccessDenied: "
                              "Not you (request R1); "));
  EXPECT_THAT(text, HasSubstr("s3:PutObject"));
  const std::string long_text = Judge(Response(400, "X", std::string(10'000, 'x'))).error.message;
  EXPECT_LT(long_text.size(), 1000u);
}

TEST(S3ErrorsTest, TheServerMayRequestAPause) {
  HttpResponse response = Response(503, "SlowDown");
  response.headers = {{"retry-after", "7"}};
  EXPECT_EQ(Judge(response).retry_after, std::chrono::seconds(7));
}

TEST(S3ErrorsTest, AFailureWithoutAResponseIsJudgedByItsKind) {
  const auto judge = [](HttpFailure failure) {
    HttpResponse response;
    response.failure = failure;
    response.error = "in libcurl's words";
    return Judge(response);
  };
  EXPECT_EQ(judge(HttpFailure::kConnect).verdict, S3Verdict::kRetry);
  EXPECT_FALSE(judge(HttpFailure::kConnect).may_have_been_performed);
  EXPECT_TRUE(judge(HttpFailure::kTransfer).may_have_been_performed);
  EXPECT_EQ(judge(HttpFailure::kTls).verdict, S3Verdict::kFailed);
  EXPECT_THAT(judge(HttpFailure::kTls).error.message, HasSubstr("AWS_CA_BUNDLE"));
  EXPECT_EQ(judge(HttpFailure::kCancelled).error.code, ErrorCode::kCancelled);
}

TEST(S3RangesTest, OnlyTheRequestedRangeIsASuccess) {
  const auto judge = [](int status, const std::string& content_range, uint64_t received_bytes) {
    HttpResponse response = Response(status);
    if (!content_range.empty()) response.headers = {{"content-range", content_range}};
    response.target_bytes = received_bytes;
    return JudgeRange(response, {.offset_bytes = 10, .length_bytes = 5}, "read", "e");
  };
  EXPECT_EQ(judge(206, "bytes 10-14/100", 5).verdict, S3Verdict::kSuccess);
  EXPECT_EQ(judge(206, "bytes 10-14/*", 5).verdict, S3Verdict::kSuccess);
  EXPECT_EQ(judge(206, "bytes 10-12/13", 3).error.code, ErrorCode::kDataLoss);
  EXPECT_EQ(judge(200, "", 5).error.code, ErrorCode::kUnimplemented);
  // The object does not end there, or may not.
  EXPECT_EQ(judge(206, "bytes 10-12/100", 3).verdict, S3Verdict::kRetry);
  EXPECT_EQ(judge(206, "bytes 10-12/*", 3).verdict, S3Verdict::kRetry);
  for (const char* text : {"", "bytes 11-15/100", "bytes 10-13/100", "bytes 14-10/100",
                           "bytes 10-14", "bytes */100", "items 10-14/100"}) {
    EXPECT_EQ(judge(206, text, 5).verdict, S3Verdict::kRetry) << text;
  }
}

TEST(S3XmlTest, ParsesListings) {
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto listing,
      ParseS3Listing("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"x\">"
                     "<Name>b</Name><IsTruncated>true</IsTruncated>"
                     "<Contents><Key>a&amp;b</Key><Size>1</Size></Contents>"
                     "<Contents><Key>c</Key></Contents>"
                     "<NextContinuationToken>t/1==</NextContinuationToken></ListBucketResult>"));
  EXPECT_THAT(listing.keys, ::testing::ElementsAre("a&b", "c"));
  EXPECT_TRUE(listing.is_truncated);
  EXPECT_EQ(listing.next_token, "t/1==");
  EXPECT_THAT(ParseS3Listing("<ListBucketResult><Contents>"),
              IsError(ErrorCode::kUnavailable, "not a listing"));
}

TEST(S3XmlTest, EncodesTheCompletionOfAnUpload) {
  EXPECT_EQ(CompleteUploadBody({{.etag = "\"1\"", .crc32 = ""}, {.etag = "<2>", .crc32 = "AA=="}}),
            "<?xml version=\"1.0\"?><CompleteMultipartUpload "
            "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
            "<Part><ETag>\"1\"</ETag><PartNumber>1</PartNumber></Part>"
            "<Part><ChecksumCRC32>AA==</ChecksumCRC32><ETag>&lt;2&gt;</ETag>"
            "<PartNumber>2</PartNumber></Part></CompleteMultipartUpload>");
}

}  // namespace
}  // namespace cairn::testing
