// Sources of credentials, and when they are asked.

#include "kv/storage/s3/internal/credentials.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/http_server.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {
namespace {

using kv::S3Credentials;
using kv::internal::CredentialContext;
using kv::internal::CredentialsCache;
using kv::internal::FindCredentials;
using kv::internal::ParseTime;
using std::chrono::system_clock;
using namespace std::string_view_literals;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;
using ::testing::Not;

using Variables = std::map<std::string, std::string>;

constexpr const char* kDocument =
    R"({"AccessKeyId": "AK-service", "SecretAccessKey": "SECRET-service",)"
    R"( "Token": "TOKEN-service", "Expiration": "2040-01-02T03:04:05Z"})";

CredentialContext ContextOf(Variables variables, std::map<std::string, std::string> profile = {}) {
  CredentialContext context;
  context.profile.name = "p";
  for (auto& [name, value] : profile) context.profile.settings[name] = value;
  variables.try_emplace("AWS_EC2_METADATA_DISABLED", "true");
  context.environment = [variables = std::move(variables)](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  return context;
}

std::string KeyFrom(const CredentialContext& context) {
  const Result<S3Credentials> credentials = FindCredentials(context);
  CAIRN_EXPECT_OK(credentials);
  return credentials ? credentials->access_key_id : "(error)";
}

TEST(CredentialSourcesTest, TheEnvironmentPrecedesTheProfile) {
  const Variables variables = {
      {"AWS_ACCESS_KEY_ID", "AK-env"}, {"AWS_SECRET_ACCESS_KEY", "s"}, {"AWS_SESSION_TOKEN", "t"}};
  CredentialContext context =
      ContextOf(variables, {{"aws_access_key_id", "AK-profile"}, {"aws_secret_access_key", "s"}});
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials credentials, FindCredentials(context));
  EXPECT_EQ(credentials.access_key_id, "AK-env");
  EXPECT_EQ(credentials.session_token, "t");
  context.profile_is_explicit = true;
  EXPECT_EQ(KeyFrom(context), "AK-profile");
}

TEST(CredentialSourcesTest, HalfAKeyIsAnError) {
  EXPECT_THAT(FindCredentials(ContextOf({{"AWS_ACCESS_KEY_ID", "AK"}})),
              IsError(ErrorCode::kFailedPrecondition, "only one of"));
}

TEST(CredentialSourcesTest, NoSourceIsAnErrorThatListsThem) {
  EXPECT_THAT(FindCredentials(ContextOf({})),
              IsError(ErrorCode::kFailedPrecondition, "AWS_ACCESS_KEY_ID"));
}

TEST(CredentialSourcesTest, AProcessSuppliesThem) {
  EXPECT_EQ(KeyFrom(ContextOf({}, {{"credential_process", fmt::format("echo '{}'", kDocument)}})),
            "AK-service");
  EXPECT_THAT(FindCredentials(ContextOf({}, {{"credential_process", "exit 3"}})),
              IsError(ErrorCode::kFailedPrecondition, "exit status 3"));
  const auto broken = FindCredentials(
      ContextOf({}, {{"credential_process", "echo '{\"SecretAccessKey\": \"SECRET-x\"}'"}}));
  EXPECT_THAT(broken, IsError(ErrorCode::kFailedPrecondition, "credential_process"));
  EXPECT_THAT(broken.error().ToString(), Not(HasSubstr("SECRET-x")));
}

TEST(CredentialSourcesTest, AProcessThatDoesNotEndIsAnError) {
  for (const char* command : {"exec sleep 1000000", "exec yes"}) {
    CredentialContext context = ContextOf({}, {{"credential_process", command}});
    context.process_timeout = std::chrono::milliseconds(300);
    EXPECT_THAT(FindCredentials(context), IsError(ErrorCode::kFailedPrecondition, "has not ended"));
  }
}

TEST(CredentialSourcesTest, AContainerSuppliesThem) {
  const ScopedTempDir dir;
  std::ofstream(dir / "token") << "TOKEN-of-container\n";
  std::string authorization;
  int failure_count = 0;
  HttpServer server([&](const HttpCall& call) -> HttpReply {
    if (failure_count-- > 0) return {.status = 500};
    authorization = call.Header("authorization");
    return {.status = call.target == "/creds" ? 200 : 404, .body = kDocument};
  });
  const auto context_of = [&](const std::string& path) {
    return ContextOf({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", server.endpoint() + path},
                      {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", dir / "token"}});
  };
  failure_count = 2;
  // It would see the token: the request does not use TLS.
  HttpServer proxy([](const HttpCall&) -> HttpReply { return {.status = 502}; });
  ::setenv("http_proxy", proxy.endpoint().c_str(), 1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials credentials,
                             FindCredentials(context_of("/creds")));
  ::unsetenv("http_proxy");
  EXPECT_EQ(proxy.connection_count(), 0);
  EXPECT_EQ(credentials.access_key_id, "AK-service");
  EXPECT_EQ(credentials.session_token, "TOKEN-service");
  EXPECT_EQ(credentials.expiry, ParseTime("2040-01-02T03:04:05Z"));
  EXPECT_EQ(authorization, "TOKEN-of-container");
  EXPECT_THAT(FindCredentials(context_of("/other")),
              IsError(ErrorCode::kFailedPrecondition, "status 404"));
}

TEST(CredentialSourcesTest, AContainerServiceElsewhereMustUseTls) {
  for (const char* uri :
       {"http://example.com/creds", "http://169.254.170.2.example.com/", "http://user@example.com/",
        "http://127.example.com/", "http://127.0.0.1.example.com/", "http://127.0.0.1@example.com/",
        "http://localhost.example.com/", "http://169.254.169.254/", "http://[::2]/",
        "http://128.0.0.1/", "ftp://127.0.0.1/", "nonsense"}) {
    EXPECT_THAT(FindCredentials(ContextOf({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", uri}})),
                IsError(ErrorCode::kFailedPrecondition, "AWS_CONTAINER_CREDENTIALS_FULL_URI"))
        << uri;
  }
  for (const char* end : {".example.com/", "@example.com/"}) {
    EXPECT_THAT(FindCredentials(ContextOf({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", end}})),
                IsError(ErrorCode::kFailedPrecondition, "AWS_CONTAINER_CREDENTIALS_FULL_URI"))
        << end;
  }
  for (const char* uri : {"http://localhost:1/x", "http://127.0.0.1/", "http://127.255.0.3:80/",
                          "http://[::1]/", "http://169.254.170.2/", "http://169.254.170.23/",
                          "http://[fd00:ec2::23]:80/", "https://example.com/"}) {
    EXPECT_TRUE(kv::internal::MayAskForCredentials(uri)) << uri;
  }
}

TEST(CredentialSourcesTest, AMachineSuppliesThem) {
  bool has_role = true;
  HttpServer server([&](const HttpCall& call) -> HttpReply {
    if (call.method == "PUT" && call.target == "/latest/api/token") return {.body = "IMDS-TOKEN"};
    if (call.Header("x-aws-ec2-metadata-token") != "IMDS-TOKEN") return {.status = 401};
    const std::string base = "/latest/meta-data/iam/security-credentials/";
    if (!has_role) return {.status = 404};
    if (call.target == base) return {.body = "a role\n"};
    if (call.target == base + "a%20role") return {.body = kDocument};
    return {.status = 404};
  });
  Variables variables = {{"AWS_EC2_METADATA_SERVICE_ENDPOINT", server.endpoint() + "/"},
                         {"AWS_EC2_METADATA_DISABLED", "false"}};
  EXPECT_EQ(KeyFrom(ContextOf(variables)), "AK-service");
  has_role = false;
  EXPECT_THAT(FindCredentials(ContextOf(variables)),
              IsError(ErrorCode::kFailedPrecondition, "found no credentials"));
  has_role = true;
  variables["AWS_EC2_METADATA_DISABLED"] = "True";
  EXPECT_THAT(FindCredentials(ContextOf(variables)),
              IsError(ErrorCode::kFailedPrecondition, "found no credentials"));
}

// Other keys, such as those of the machine, would be those of another identity.
TEST(CredentialSourcesTest, RolesNeedAProcess) {
  const std::map<std::string, std::string> keys = {{"aws_access_key_id", "AK-profile"},
                                                   {"aws_secret_access_key", "s"}};
  const std::string process = fmt::format("echo '{}'", kDocument);
  for (const char* setting :
       {"role_arn", "web_identity_token_file", "sso_session", "sso_start_url"}) {
    auto profile = keys;
    profile[setting] = "x";
    EXPECT_THAT(FindCredentials(ContextOf({}, profile)),
                IsError(ErrorCode::kFailedPrecondition, setting));
    profile["credential_process"] = process;
    EXPECT_EQ(KeyFrom(ContextOf({}, profile)), "AK-service") << setting;
  }
  CredentialContext context = ContextOf({{"AWS_WEB_IDENTITY_TOKEN_FILE", "/token"}}, keys);
  EXPECT_THAT(FindCredentials(context),
              IsError(ErrorCode::kFailedPrecondition, "export-credentials --profile p"));
  context.profile.settings["credential_process"] = process;
  EXPECT_EQ(KeyFrom(context), "AK-service");
  context.profile_is_explicit = true;  // so the variable is ignored
  EXPECT_EQ(KeyFrom(context), "AK-profile");
}

TEST(CredentialSourcesTest, ParsesTimes) {
  EXPECT_EQ(ParseTime("1970-01-02T00:00:01Z"), system_clock::from_time_t(86'401));
  EXPECT_EQ(ParseTime("1970-01-02T00:00:01.250Z"), system_clock::from_time_t(86'401));
  EXPECT_EQ(ParseTime("1970-01-02T00:00:01+00:00"), system_clock::from_time_t(86'401));
  for (const char* text : {"", "tomorrow", "1970-01-02", "1970-01-02T00:00:01+02:00",
                           "1970-01-02T00:00:01.", "1970-01-02T00:00:01"}) {
    EXPECT_EQ(ParseTime(text), std::nullopt) << text;
  }
}

TEST(CredentialSourcesTest, TimesThatTheClockCannotRepresentAreTheNearest) {
  for (const char* text : {"9999-12-31T23:59:59Z", "2262-04-12T00:00:00Z"}) {
    const auto time = ParseTime(text);
    ASSERT_TRUE(time) << text;
    EXPECT_GT(*time, system_clock::time_point::max() - std::chrono::seconds(1)) << text;
  }
  EXPECT_EQ(ParseTime("0001-01-01T00:00:00Z"), system_clock::from_time_t(0));
}

// A source whose credentials expire after `lifetime`; counts how often it is asked.
struct CountingSource {
  std::chrono::seconds lifetime{3600};
  std::atomic<int> count = 0;
  std::atomic<bool> fails = false;

  Result<S3Credentials> operator()() {
    const int number = ++count;
    if (fails) return Fail(ErrorCode::kUnavailable, "the source does not answer");
    return S3Credentials{.access_key_id = std::to_string(number),
                         .secret_access_key = "s",
                         .session_token = "",
                         .expiry = system_clock::now() + lifetime};
  }
};

TEST(CredentialsCacheTest, AsksOnceForManyThreads) {
  CountingSource source;
  CredentialsCache cache([&] { return source(); });
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto credentials = cache.Get();
      CAIRN_EXPECT_OK(credentials);
      EXPECT_TRUE(credentials && (*credentials)->access_key_id == "1");
    });
  }
  threads.clear();
  EXPECT_EQ(source.count, 1);
}

TEST(CredentialsCacheTest, AsksAgainAfterExpiryAndRejection) {
  CountingSource source;
  CredentialsCache cache([&] { return source(); });
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto first, cache.Get());
  cache.Reject(first);
  source.lifetime = std::chrono::seconds(-1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto second, cache.Get());
  EXPECT_EQ(second->access_key_id, "2");
  source.lifetime = std::chrono::hours(1);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto third, cache.Get());
  EXPECT_EQ(third->access_key_id, "3") << "the second ones had expired";
  cache.Reject(first);  // is not that of the third
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto same, cache.Get());
  EXPECT_EQ(same, third);
}

TEST(CredentialsCacheTest, KeepsValidCredentialsIfTheSourceFails) {
  CountingSource source;
  source.lifetime = std::chrono::seconds(60);  // so another Get tries to replace them
  CredentialsCache cache([&] { return source(); });
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto first, cache.Get());
  source.fails = true;
  for (int i = 0; i < 3; ++i) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto credentials, cache.Get());
    EXPECT_EQ(credentials, first);
  }
  cache.Reject(first);
  EXPECT_THAT(cache.Get(), IsError(ErrorCode::kUnavailable, "does not answer"));
}

// What follows a line break would be another header.
TEST(CredentialsCacheTest, RefusesWhatAHeaderCannotContain) {
  const S3Credentials good{.access_key_id = "AK", .secret_access_key = "s", .session_token = "t"};
  for (const std::string_view text : {"a\r\nx-amz-acl: public-read"sv, "a\n"sv, "a\0b"sv}) {
    for (const auto member : {&S3Credentials::access_key_id, &S3Credentials::secret_access_key,
                              &S3Credentials::session_token}) {
      S3Credentials bad = good;
      bad.*member = text;
      CredentialsCache cache([&] { return bad; });
      EXPECT_THAT(cache.Get(), IsError(ErrorCode::kFailedPrecondition, "line break"));
    }
  }
  CredentialsCache cache([&] { return good; });
  CAIRN_EXPECT_OK(cache.Get());
}

}  // namespace
}  // namespace cairn::testing
