// Profiles with roles and with SSO, whose services are servers in this process.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kv/internal/s3/aws_profile.h"
#include "kv/internal/s3/credential_services.h"
#include "kv/internal/s3/credential_sources.h"
#include "tests/support/http_server.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {
namespace {

using kv::S3Credentials;
using kv::internal::CredentialContext;
using kv::internal::FindCredentials;
using kv::internal::ParseTime;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Occur in no error.
constexpr const char* kSecrets[] = {"SECRET", "TOKEN"};

std::string StsReply(std::string_view action, std::string_view key) {
  return fmt::format(
      "<{0}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{0}Result><Credentials>"
      "<AccessKeyId>{1}</AccessKeyId><SecretAccessKey>SECRET-{1}</SecretAccessKey>"
      "<SessionToken>TOKEN-{1}</SessionToken><Expiration>2040-01-02T03:04:05Z</Expiration>"
      "</Credentials></{0}Result></{0}Response>",
      action, key);
}

class RoleCredentialsTest : public ::testing::Test {
 protected:
  RoleCredentialsTest()
      : server_([this](const HttpCall& call) {
          calls_.push_back(call);
          return reply_(call);
        }) {
    std::filesystem::create_directories(dir_ / ".aws/sso/cache");
    SetConfig("");
    reply_ = [this](const HttpCall& call) -> HttpReply {
      const std::string role = call.Parameter("RoleArn").value_or("");
      return {.body = StsReply("AssumeRole", "AK-of-" + role)};
    };
  }

  void SetConfig(const std::string& text) { Write(".aws/config", text); }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name) << text;
  }
  void WriteSsoToken(const std::string& name, const std::string& url, const std::string& token,
                     const std::string& expiry) {
    Write(".aws/sso/cache/" + name,
          fmt::format(R"({{"startUrl": "{}", "region": "r-2", "accessToken": "{}", )"
                      R"("expiresAt": "{}", "refreshToken": "SECRET-refresh"}})",
                      url, token, expiry));
  }

  Result<S3Credentials> Find(const std::string& profile,
                             std::map<std::string, std::string> more = {}) {
    std::map<std::string, std::string> variables = {{"HOME", dir_.path()},
                                                    {"AWS_EC2_METADATA_DISABLED", "true"},
                                                    {"AWS_ENDPOINT_URL_STS", server_.endpoint()},
                                                    {"AWS_ENDPOINT_URL_SSO", server_.endpoint()}};
    for (const auto& [name, value] : more) variables[name] = value;
    CredentialContext context;
    context.environment = [variables](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? std::string() : found->second;
    };
    CAIRN_TRY_ASSIGN(context.profile, kv::internal::ReadAwsProfile(profile, context.environment));
    context.profile_is_explicit = profile_is_explicit_;
    context.region = "r-1";
    auto found = FindCredentials(context);
    if (!found) {
      for (const char* secret : kSecrets) {
        EXPECT_THAT(found.error().ToString(), Not(HasSubstr(secret)));
      }
    }
    return found;
  }

  const ScopedTempDir dir_;
  std::function<HttpReply(const HttpCall&)> reply_;
  bool profile_is_explicit_ = true;
  std::vector<HttpCall> calls_;  // used by one thread at a time
  HttpServer server_;            // last: its threads use the rest
};

constexpr const char* kRoleWithKeys =
    "[profile base]\n"
    "aws_access_key_id = AK-base\naws_secret_access_key = SECRET-base\n"
    "aws_session_token = TOKEN-base\n"
    "[profile p]\n"
    "role_arn = arn:aws:iam::1:role/r\nsource_profile = base\n"
    "role_session_name = a job\nexternal_id = x/1\nduration_seconds = 900\n";

constexpr const char* kSsoProfile =
    "[profile sso]\nsso_start_url = https://company.example/start\nsso_region = r-2\n"
    "sso_account_id = 123\nsso_role_name = r\n";

TEST_F(RoleCredentialsTest, ARoleIsAssumedWithTheKeysOfTheSourceProfile) {
  SetConfig(kRoleWithKeys);
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials credentials, Find("p"));
  EXPECT_EQ(credentials.access_key_id, "AK-of-arn:aws:iam::1:role/r");
  EXPECT_EQ(credentials.secret_access_key, "SECRET-AK-of-arn:aws:iam::1:role/r");
  EXPECT_EQ(credentials.session_token, "TOKEN-AK-of-arn:aws:iam::1:role/r");
  EXPECT_EQ(credentials.expiry, ParseTime("2040-01-02T03:04:05Z"));
  ASSERT_THAT(calls_, SizeIs(1));
  const HttpCall& call = calls_[0];
  EXPECT_EQ(call.target,
            "/?Action=AssumeRole&DurationSeconds=900&ExternalId=x%2F1&"
            "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&RoleSessionName=a%20job&"
            "Version=2011-06-15");
  EXPECT_EQ(call.Header("x-amz-security-token"), "TOKEN-base");
  const std::string authorization = call.Header("authorization");
  EXPECT_THAT(authorization, HasSubstr("AWS4-HMAC-SHA256 Credential=AK-base/"));
  EXPECT_THAT(authorization, HasSubstr("/r-1/sts/aws4_request"));
  EXPECT_THAT(authorization, HasSubstr("x-amz-security-token"));
  EXPECT_THAT(authorization, Not(HasSubstr("SECRET")));
}

TEST_F(RoleCredentialsTest, ASourceProfileMayHaveARoleItself) {
  SetConfig(std::string(kRoleWithKeys) +
            "[profile q]\nrole_arn = second\nsource_profile = p\n"
            "[profile own]\nrole_arn = third\nsource_profile = own\n"
            "aws_access_key_id = AK-own\naws_secret_access_key = SECRET-own\n");
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials credentials, Find("q"));
  EXPECT_EQ(credentials.access_key_id, "AK-of-second");
  ASSERT_THAT(calls_, SizeIs(2));
  EXPECT_THAT(calls_[1].Header("authorization"), HasSubstr("=AK-of-arn:aws:iam::1:role/r/"));
  EXPECT_EQ(calls_[1].Header("x-amz-security-token"), "TOKEN-AK-of-arn:aws:iam::1:role/r");
  // A profile may be its own source: the role is assumed with its keys.
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials own, Find("own"));
  EXPECT_EQ(own.access_key_id, "AK-of-third");
  EXPECT_THAT(calls_[2].Header("authorization"), HasSubstr("=AK-own/"));
}

TEST_F(RoleCredentialsTest, CredentialSourceNamesWhereTheKeysAre) {
  SetConfig(
      "[profile env]\nrole_arn = r\ncredential_source = Environment\n"
      "[profile ecs]\nrole_arn = r\ncredential_source = EcsContainer\n"
      "[profile ec2]\nrole_arn = r\ncredential_source = Ec2InstanceMetadata\n"
      "[profile other]\nrole_arn = r\ncredential_source = Elsewhere\n");
  const auto with_key = [](const std::string& key) {
    return fmt::format(R"({{"AccessKeyId": "{}", "SecretAccessKey": "SECRET-1"}})", key);
  };
  reply_ = [&](const HttpCall& call) -> HttpReply {
    if (call.target == "/container") return {.body = with_key("AK-container")};
    if (call.target == "/latest/api/token") return {.body = "IMDS"};
    if (call.target.ends_with("/security-credentials/")) return {.body = "role"};
    if (call.target.ends_with("/security-credentials/role"))
      return {.body = with_key("AK-machine")};
    return {.body = StsReply("AssumeRole", call.Header("authorization").substr(28, 9))};
  };
  const std::map<std::string, std::string> variables = {
      {"AWS_ACCESS_KEY_ID", "AK-env"},
      {"AWS_SECRET_ACCESS_KEY", "SECRET-env"},
      {"AWS_CONTAINER_CREDENTIALS_FULL_URI", server_.endpoint() + "/container"},
      {"AWS_EC2_METADATA_DISABLED", "false"},
      {"AWS_EC2_METADATA_SERVICE_ENDPOINT", server_.endpoint()}};
  for (const auto& [profile, key] : std::map<std::string, std::string>{
           {"env", "AK-env/20"}, {"ecs", "AK-contai"}, {"ec2", "AK-machin"}}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials credentials, Find(profile, variables));
    EXPECT_EQ(credentials.access_key_id, key) << profile;
  }
  EXPECT_THAT(Find("env"),
              IsError(ErrorCode::kFailedPrecondition, "credential_source=Environment"));
  EXPECT_THAT(Find("other", variables), IsError(ErrorCode::kFailedPrecondition, "EcsContainer"));
}

TEST_F(RoleCredentialsTest, AProfileWithAWebIdentity) {
  SetConfig(
      fmt::format("[profile p]\nrole_arn = r\nweb_identity_token_file = {}\n"
                  "[profile q]\nrole_arn = second\nsource_profile = p\n",
                  (dir_ / "token")));
  Write("token", "TOKEN-of-web\n");
  reply_ = [&](const HttpCall& call) -> HttpReply {
    const bool is_web = call.method == "POST";
    return {.body = StsReply(is_web ? "AssumeRoleWithWebIdentity" : "AssumeRole",
                             is_web ? "AK-web" : "AK-second")};
  };
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials credentials, Find("p"));
  EXPECT_EQ(credentials.access_key_id, "AK-web");
  EXPECT_THAT(calls_[0].body, HasSubstr("WebIdentityToken=TOKEN-of-web"));
  EXPECT_EQ(calls_[0].Header("authorization"), "");
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials second, Find("q"));
  EXPECT_EQ(second.access_key_id, "AK-second");
  EXPECT_THAT(calls_.back().Header("authorization"), HasSubstr("=AK-web/"));
}

TEST_F(RoleCredentialsTest, ProfilesThatAreNotCompleteAreErrors) {
  SetConfig(
      "[profile none]\nrole_arn = r\n"
      "[profile two]\nrole_arn = r\nsource_profile = none\ncredential_source = Environment\n"
      "[profile mfa]\nrole_arn = r\nsource_profile = none\nmfa_serial = m\n"
      "[profile absent]\nrole_arn = r\nsource_profile = nobody\n"
      "[profile empty]\nrole_arn = r\nsource_profile = nothing\n[profile nothing]\nregion = x\n"
      "[profile a]\nrole_arn = r\nsource_profile = b\n"
      "[profile b]\nrole_arn = r\nsource_profile = a\n");
  const auto code = ErrorCode::kFailedPrecondition;
  EXPECT_THAT(Find("none"), IsError(code, "source_profile"));
  EXPECT_THAT(Find("two"), IsError(code, "two sources"));
  EXPECT_THAT(Find("mfa"), IsError(code, "export-credentials"));
  EXPECT_THAT(Find("absent"), IsError(ErrorCode::kInvalidArgument, "\"nobody\""));
  EXPECT_THAT(Find("empty"), IsError(code, "\"nothing\""));
  EXPECT_THAT(Find("a"), IsError(code, "a -> b -> a"));
  EXPECT_THAT(calls_, IsEmpty());
}

TEST_F(RoleCredentialsTest, ARefusalNamesTheRoleAndTheCodeAndNothingElse) {
  SetConfig(kRoleWithKeys);
  reply_ = [](const HttpCall&) -> HttpReply {
    return {.status = 403,
            .body =
                "<ErrorResponse><Error><Code>AccessDenied</Code>"
                "<Message>SECRET-message</Message></Error></ErrorResponse>"};
  };
  const auto refused = Find("p");
  EXPECT_THAT(refused, IsError(ErrorCode::kFailedPrecondition, "403 (AccessDenied)"));
  EXPECT_THAT(refused, IsError(ErrorCode::kFailedPrecondition, "arn:aws:iam::1:role/r"));
  reply_ = [](const HttpCall&) -> HttpReply {
    return {.status = 403, .body = "<ErrorResponse><Error><Code>SECRET-1</Code></Error>"};
  };
  EXPECT_THAT(Find("p"), IsError(ErrorCode::kFailedPrecondition, "403"));
  reply_ = [](const HttpCall&) -> HttpReply { return {.body = "<SECRET/>"}; };
  EXPECT_THAT(Find("p"), IsError(ErrorCode::kFailedPrecondition, "supplied no credentials"));
  int count = 0;
  reply_ = [&](const HttpCall&) -> HttpReply {
    if (++count < 3) return {.status = 500, .body = "SECRET"};
    return {.body = StsReply("AssumeRole", "AK")};
  };
  EXPECT_TRUE(IsOk(Find("p"))) << "it is repeated";
  reply_ = [](const HttpCall&) -> HttpReply { return {.status = 503, .body = "SECRET"}; };
  EXPECT_THAT(Find("p"), IsError(ErrorCode::kUnavailable, "503"));
}

TEST_F(RoleCredentialsTest, RequestsAreRepeatedIfThereWereTooMany) {
  SetConfig(kRoleWithKeys);
  const auto refusal = [](std::string_view code) {
    return fmt::format("<ErrorResponse><Error><Code>{}</Code></Error></ErrorResponse>", code);
  };
  for (const HttpReply& busy : {HttpReply{.status = 400, .body = refusal("Throttling")},
                                HttpReply{.status = 403, .body = refusal("RequestLimitExceeded")},
                                HttpReply{.status = 429}, HttpReply{.status = 503}}) {
    int count = 0;
    reply_ = [&](const HttpCall&) -> HttpReply {
      if (++count < 3) return busy;
      return {.body = StsReply("AssumeRole", "AK")};
    };
    CAIRN_EXPECT_OK(Find("p"));
    EXPECT_EQ(count, 3) << busy.status;
  }
  reply_ = [&](const HttpCall&) -> HttpReply {
    return {.status = 400, .body = refusal("Throttling")};
  };
  EXPECT_THAT(Find("p"), IsError(ErrorCode::kUnavailable, "400 (Throttling)"));
}

TEST_F(RoleCredentialsTest, ARoleOfTheProfilePrecedesAWebIdentityOfTheEnvironment) {
  SetConfig(
      "[default]\nrole_arn = r\nsource_profile = base\n"
      "[profile base]\naws_access_key_id = AK-base\naws_secret_access_key = SECRET-base\n"
      "[profile both]\nrole_arn = second\nsource_profile = base\n"
      "aws_access_key_id = AK-both\naws_secret_access_key = SECRET-both\n"
      "[profile chained]\nrole_arn = third\nsource_profile = both\n");
  Write("token", "TOKEN-of-web\n");
  profile_is_explicit_ = false;
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials credentials,
                             Find("default", {{"AWS_WEB_IDENTITY_TOKEN_FILE", dir_ / "token"},
                                              {"AWS_ROLE_ARN", "of-the-web"}}));
  EXPECT_EQ(credentials.access_key_id, "AK-of-r");
  profile_is_explicit_ = true;
  // The keys of a source profile precede its role.
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials chained, Find("chained"));
  EXPECT_EQ(chained.access_key_id, "AK-of-third");
  EXPECT_THAT(calls_.back().Header("authorization"), HasSubstr("=AK-both/"));
  ASSERT_THAT(calls_, SizeIs(2));
}

TEST_F(RoleCredentialsTest, AWebIdentityNeedsARole) {
  SetConfig(
      fmt::format("[default]\nregion = x\n[profile p]\nweb_identity_token_file = {0}\n"
                  "[profile q]\nrole_arn = of-q\nweb_identity_token_file = {0}\n",
                  (dir_ / "token")));
  Write("token", "TOKEN-of-web\n");
  const auto code = ErrorCode::kFailedPrecondition;
  EXPECT_THAT(Find("p"), IsError(code, "no role for it; set AWS_ROLE_ARN"));
  profile_is_explicit_ = false;
  EXPECT_THAT(Find("default", {{"AWS_WEB_IDENTITY_TOKEN_FILE", dir_ / "token"}}),
              IsError(code, "no role for it; set AWS_ROLE_ARN"));
  EXPECT_THAT(calls_, IsEmpty());
  // Each setting of the environment replaces that of the profile.
  reply_ = [&](const HttpCall& call) -> HttpReply {
    EXPECT_THAT(call.body, HasSubstr("RoleArn=of-q"));
    return {.body = StsReply("AssumeRoleWithWebIdentity", "AK-web")};
  };
  CAIRN_ASSERT_OK(Find("q", {{"AWS_WEB_IDENTITY_TOKEN_FILE", dir_ / "token"}}));
  EXPECT_THAT(calls_, SizeIs(1));
}

TEST_F(RoleCredentialsTest, CredentialsWithoutAnExpirationAreErrors) {
  SetConfig(std::string(kRoleWithKeys) + kSsoProfile);
  for (const std::string_view expiry : {"", "soon", "2040-01-02T03:04:05+02:00"}) {
    reply_ = [&](const HttpCall&) -> HttpReply {
      std::string body = StsReply("AssumeRole", "AK");
      body.replace(body.find("2040-01-02T03:04:05Z"), 20, expiry);
      return {.body = body};
    };
    EXPECT_THAT(Find("p"), IsError(ErrorCode::kFailedPrecondition, "without an expiration"));
  }
  WriteSsoToken("1.json", "https://company.example/start", "TOKEN-1", "2040-01-01T00:00:00Z");
  for (const std::string_view expiry : {"\"soon\"", "null", "-1"}) {
    reply_ = [&](const HttpCall&) -> HttpReply {
      return {.body = fmt::format(R"({{"roleCredentials": {{"accessKeyId": "a", )"
                                  R"("secretAccessKey": "SECRET", "expiration": {}}}}})",
                                  expiry)};
    };
    EXPECT_THAT(Find("sso"), IsError(ErrorCode::kFailedPrecondition, "without an expiration"));
  }
}

TEST_F(RoleCredentialsTest, TheEndpointOfStsMustUseTls) {
  SetConfig(kRoleWithKeys);
  EXPECT_THAT(Find("p", {{"AWS_ENDPOINT_URL_STS", "http://sts.example.com"}}),
              IsError(ErrorCode::kFailedPrecondition, "AWS_ENDPOINT_URL_STS"));
  EXPECT_THAT(calls_, IsEmpty());
}

// It would see the token: the request does not use TLS.
TEST_F(RoleCredentialsTest, NoProxyIsUsedForAServiceOfThisMachine) {
  SetConfig(kRoleWithKeys);
  HttpServer proxy([](const HttpCall&) -> HttpReply { return {.status = 502}; });
  ::setenv("http_proxy", proxy.endpoint().c_str(), 1);
  CAIRN_EXPECT_OK(Find("p"));
  ::unsetenv("http_proxy");
  EXPECT_EQ(proxy.connection_count(), 0);
}

TEST_F(RoleCredentialsTest, TheRegionOfSsoIsNoPartOfAnotherHost) {
  std::string config = kSsoProfile;
  config.replace(config.find("r-2"), 3, "example.com/r-2");
  SetConfig(config);
  WriteSsoToken("1.json", "https://company.example/start", "TOKEN-1", "2040-01-01T00:00:00Z");
  EXPECT_THAT(Find("sso", {{"AWS_ENDPOINT_URL_SSO", ""}}),
              IsError(ErrorCode::kFailedPrecondition, "sso_region"));
}

constexpr const char* kSso =
    "[sso-session company]\nsso_start_url = https://company.example/start\nsso_region = r-2\n"
    "[profile p]\nsso_session = company\nsso_account_id = 123\nsso_role_name = a role\n"
    "[profile old]\nsso_start_url = https://old.example/start/\nsso_region = r-2\n"
    "sso_account_id = 4\nsso_role_name = r\n"
    "[profile role]\nrole_arn = second\nsource_profile = p\n";

HttpReply SsoReply(const std::string& key) {
  return {.body = fmt::format(R"({{"roleCredentials": {{"accessKeyId": "{0}", )"
                              R"("secretAccessKey": "SECRET-{0}", "sessionToken": "TOKEN-{0}", )"
                              R"("expiration": 2209089845000}}}})",
                              key)};
}

TEST_F(RoleCredentialsTest, SsoUsesTheTokenThatExpiresLast) {
  SetConfig(kSso);
  WriteSsoToken("0.json", "https://company.example/start", "TOKEN-past", "2020-01-01T00:00:00Z");
  WriteSsoToken("1.json", "https://company.example/start/#", "TOKEN-new", "2040-01-01T00:00:00Z");
  WriteSsoToken("2.json", "https://company.example/start", "TOKEN-soon", "2039-01-01T00:00:00Z");
  WriteSsoToken("3.json", "https://old.example/start", "TOKEN-old", "2040-01-01T00:00:00UTC");
  Write(".aws/sso/cache/botocore-client-id-r-2.json",
        R"({"clientId": "c", "clientSecret": "SECRET-c", "expiresAt": "2041-01-01T00:00:00Z"})");
  Write(".aws/sso/cache/broken.json", "{");
  reply_ = [](const HttpCall&) { return SsoReply("AK-sso"); };
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials credentials, Find("p"));
  EXPECT_EQ(credentials.access_key_id, "AK-sso");
  EXPECT_EQ(credentials.secret_access_key, "SECRET-AK-sso");
  EXPECT_EQ(credentials.session_token, "TOKEN-AK-sso");
  EXPECT_EQ(credentials.expiry, std::chrono::system_clock::from_time_t(2'209'089'845));
  ASSERT_THAT(calls_, SizeIs(1));
  EXPECT_EQ(calls_[0].target, "/federation/credentials?account_id=123&role_name=a%20role");
  EXPECT_EQ(calls_[0].Header("x-amz-sso_bearer_token"), "TOKEN-new");
  CAIRN_ASSERT_OK(Find("old"));
  EXPECT_EQ(calls_[1].Header("x-amz-sso_bearer_token"), "TOKEN-old");
}

TEST_F(RoleCredentialsTest, ARoleMayBeAssumedFromSso) {
  SetConfig(kSso);
  WriteSsoToken("1.json", "https://company.example/start", "TOKEN-1", "2040-01-01T00:00:00Z");
  reply_ = [](const HttpCall& call) -> HttpReply {
    if (call.target.starts_with("/federation")) return SsoReply("AK-sso");
    return {.body = StsReply("AssumeRole", "AK-second")};
  };
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Credentials credentials, Find("role"));
  EXPECT_EQ(credentials.access_key_id, "AK-second");
  EXPECT_THAT(calls_.back().Header("authorization"), HasSubstr("=AK-sso/"));
}

TEST_F(RoleCredentialsTest, SsoErrorsNameTheCommandThatHelps) {
  SetConfig(std::string(kSso) + "[profile partial]\nsso_session = company\nsso_account_id = 1\n");
  const auto code = ErrorCode::kFailedPrecondition;
  EXPECT_THAT(Find("p"), IsError(code, "aws sso login --profile p"));
  EXPECT_THAT(Find("partial"), IsError(code, "sso_role_name is not set"));
  WriteSsoToken("1.json", "https://company.example/start", "TOKEN-1", "2020-01-01T00:00:00Z");
  EXPECT_THAT(Find("p"), IsError(code, "has expired; run \"aws sso login --profile p\""));
  WriteSsoToken("1.json", "https://company.example/start", "TOKEN-1", "2040-01-01T00:00:00Z");
  reply_ = [](const HttpCall&) -> HttpReply { return {.status = 401, .body = "TOKEN-1"}; };
  EXPECT_THAT(Find("p"), IsError(code, "does not accept the token"));
  reply_ = [](const HttpCall&) -> HttpReply { return {.status = 403, .body = "TOKEN-1"}; };
  EXPECT_THAT(Find("p"), IsError(code, "status 403"));
  for (const char* body : {"SECRET", "[]", "{\"roleCredentials\": 1}",
                           "{\"roleCredentials\": {\"accessKeyId\": \"a\"}}"}) {
    reply_ = [body](const HttpCall&) -> HttpReply { return {.body = body}; };
    EXPECT_THAT(Find("p"), IsError(code, "supplied no credentials")) << body;
  }
  EXPECT_THAT(Find("p", {{"AWS_ENDPOINT_URL_SSO", "http://portal.example"}}),
              IsError(code, "AWS_ENDPOINT_URL_SSO"));
}

}  // namespace
}  // namespace cairn::testing
