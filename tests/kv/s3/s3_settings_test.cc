// Addresses, profiles, and the order in which settings are looked for.

#include "kv/storage/s3/internal/s3_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {
namespace {

using kv::S3Options;
using kv::internal::AwsProfile;
using kv::internal::EncodeUri;
using kv::internal::Environment;
using kv::internal::ParseAwsSections;
using kv::internal::ParseS3Address;
using kv::internal::ReadAwsProfile;
using kv::internal::ResolveS3Settings;
using kv::internal::S3Settings;

using Variables = std::map<std::string, std::string>;

Environment EnvironmentOf(Variables variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
}

Result<S3Settings> Resolve(std::string_view address, const Variables& variables = {},
                           const S3Options& options = {}, const AwsProfile& profile = {}) {
  CAIRN_TRY_ASSIGN(const auto parsed, ParseS3Address(address, options));
  return ResolveS3Settings(parsed, profile, EnvironmentOf(variables));
}

std::string BaseUrl(std::string_view address, const Variables& variables = {},
                    const S3Options& options = {}, const AwsProfile& profile = {}) {
  const Result<S3Settings> settings = Resolve(address, variables, options, profile);
  CAIRN_EXPECT_OK(settings);
  return settings ? settings->base_url : "(error)";
}

TEST(S3AddressTest, HasABucketAPrefixAndParameters) {
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto address,
      ParseS3Address("s3://my-bucket/runs/gpt=2/?endpoint=http%3A%2F%2Fh:1&region=r-1&profile=p"
                     "&addressing=virtual"));
  EXPECT_EQ(address.bucket, "my-bucket");
  EXPECT_EQ(address.prefix, "runs/gpt=2");
  EXPECT_EQ(address.options.endpoint, "http://h:1");
  EXPECT_EQ(address.options.region, "r-1");
  EXPECT_EQ(address.options.profile, "p");
  EXPECT_EQ(address.options.addressing, kv::S3Addressing::kVirtualHost);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto whole_bucket, ParseS3Address("s3://my-bucket"));
  EXPECT_EQ(whole_bucket.prefix, "");
}

TEST(S3AddressTest, RefusesWhatIsNotAnAddress) {
  for (const char* address :
       {"s3:bucket", "s3:///prefix", "s3://b", "s3://bucket name/x", "s3://bucket/../x",
        "s3://bucket/a//b", "s3://bucket/./a", "s3://bucket/a\nb", "s3://bucket/x?unknown=1",
        "s3://bucket/x?region", "s3://bucket/x?region=%g1", "s3://bucket/x?addressing=other"}) {
    EXPECT_THAT(ParseS3Address(address), IsError(ErrorCode::kInvalidArgument, "")) << address;
  }
}

TEST(S3AddressTest, EncodesWhatSignaturesRequire) {
  EXPECT_EQ(EncodeUri("a/b c+d=é~", true), "a/b%20c%2Bd%3D%C3%A9~");
  EXPECT_EQ(EncodeUri("a/b", false), "a%2Fb");
}

TEST(S3SettingsTest, TheDefaultIsAwsWithTlsAndTheBucketInTheHost) {
  EXPECT_EQ(BaseUrl("s3://bucket/x"), "https://bucket.s3.us-east-1.amazonaws.com");
  EXPECT_EQ(BaseUrl("s3://bucket/x?region=cn-north-1"),
            "https://bucket.s3.cn-north-1.amazonaws.com.cn");
  EXPECT_EQ(BaseUrl("s3://my.bucket/x"), "https://s3.us-east-1.amazonaws.com/my.bucket");
}

TEST(S3SettingsTest, TheEndpointIsTheFirstThatIsConfigured) {
  const AwsProfile profile{.settings = {{"endpoint_url", "http://profile"}}};
  AwsProfile services = profile;
  services.settings["services.s3.endpoint_url"] = "http://services";
  const Variables general = {{"AWS_ENDPOINT_URL", "http://general"}};
  Variables specific = general;
  specific["AWS_ENDPOINT_URL_S3"] = "http://specific/";
  S3Options options;
  options.endpoint = "https://options:9000";

  EXPECT_EQ(BaseUrl("s3://bucket", {}, {}, profile), "http://profile/bucket");
  EXPECT_EQ(BaseUrl("s3://bucket", {}, {}, services), "http://services/bucket");
  EXPECT_EQ(BaseUrl("s3://bucket", general, {}, services), "http://general/bucket");
  EXPECT_EQ(BaseUrl("s3://bucket", specific, {}, services), "http://specific/bucket");
  EXPECT_EQ(BaseUrl("s3://bucket?endpoint=http://address", specific), "http://address/bucket");
  EXPECT_EQ(BaseUrl("s3://bucket?endpoint=http://address", specific, options),
            "https://options:9000/bucket");
  specific["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "true";
  EXPECT_EQ(BaseUrl("s3://bucket", specific), "https://bucket.s3.us-east-1.amazonaws.com");
}

TEST(S3SettingsTest, TheRegionIsTheFirstThatIsConfigured) {
  const AwsProfile profile{.settings = {{"region", "r-profile"}}};
  const Variables both = {{"AWS_REGION", "r-1"}, {"AWS_DEFAULT_REGION", "r-2"}};
  const auto region_of = [&](std::string_view address, const Variables& variables) {
    const auto settings = Resolve(address, variables, {}, profile);
    CAIRN_EXPECT_OK(settings);
    return settings ? settings->region : "(error)";
  };
  EXPECT_EQ(region_of("s3://bucket", {}), "r-profile");
  EXPECT_EQ(region_of("s3://bucket", {{"AWS_DEFAULT_REGION", "r-2"}}), "r-2");
  EXPECT_EQ(region_of("s3://bucket", both), "r-1");
  EXPECT_EQ(region_of("s3://bucket?region=r-0", both), "r-0");
}

TEST(S3SettingsTest, TheAddressingCanBeChosen) {
  const AwsProfile profile{.settings = {{"s3.addressing_style", "virtual"}}};
  EXPECT_EQ(BaseUrl("s3://bucket?endpoint=https://h:1", {}, {}, profile), "https://bucket.h:1");
  EXPECT_EQ(BaseUrl("s3://bucket?addressing=path"), "https://s3.us-east-1.amazonaws.com/bucket");
}

TEST(S3SettingsTest, RefusesInvalidValuesWithoutRepeatingCredentials) {
  for (const char* endpoint : {"h:1", "ftp://h", "http://", "http://h/x?y", "http://h x"}) {
    S3Options options;
    options.endpoint = endpoint;
    EXPECT_THAT(Resolve("s3://bucket", {}, options),
                IsError(ErrorCode::kInvalidArgument, "endpoint"))
        << endpoint;
  }
  S3Options options;
  options.endpoint = "https://user:hunter2@h";
  const auto with_user = Resolve("s3://bucket", {}, options);
  EXPECT_THAT(with_user, IsError(ErrorCode::kInvalidArgument, "user name"));
  EXPECT_THAT(with_user.error().ToString(), ::testing::Not(::testing::HasSubstr("hunter2")));
  EXPECT_THAT(Resolve("s3://bucket", {{"CAIRN_S3_TIMEOUT", "soon"}}),
              IsError(ErrorCode::kInvalidArgument, "CAIRN_S3_TIMEOUT"));
  EXPECT_THAT(Resolve("s3://bucket", {{"CAIRN_S3_PART_BYTES", "1000"}}),
              IsError(ErrorCode::kInvalidArgument, "parts of 1000 bytes"));
  EXPECT_THAT(Resolve("s3://bucket", {{"AWS_REGION", "a/b"}}),
              IsError(ErrorCode::kInvalidArgument, "region"));
}

TEST(S3SettingsTest, TransfersHaveDefaultsThatTheEnvironmentChanges) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const S3Settings defaults, Resolve("s3://bucket/a/b"));
  EXPECT_EQ(defaults.timeout, std::chrono::seconds(60));
  EXPECT_EQ(defaults.part_bytes, 8u << 20);
  EXPECT_EQ(defaults.queue_depth, 16u);
  EXPECT_TRUE(defaults.request_digests);
  EXPECT_EQ(defaults.prefix, "a/b/");
  EXPECT_EQ(defaults.address, "s3://bucket/a/b");
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const S3Settings changed,
      Resolve("s3://bucket", {{"CAIRN_S3_TIMEOUT", "5"},
                              {"CAIRN_S3_PART_BYTES", "16777216"},
                              {"CAIRN_S3_DEPTH", "4"},
                              {"CAIRN_S3_THREADS", "3"},
                              {"AWS_CA_BUNDLE", "/ca.pem"},
                              {"AWS_REQUEST_CHECKSUM_CALCULATION", "when_required"}}));
  EXPECT_EQ(changed.timeout, std::chrono::seconds(5));
  EXPECT_EQ(changed.part_bytes, 16u << 20);
  EXPECT_EQ(changed.queue_depth, 4u);
  EXPECT_EQ(changed.io_threads, 3u);
  EXPECT_EQ(changed.ca_bundle, "/ca.pem");
  EXPECT_FALSE(changed.request_digests);
  EXPECT_EQ(changed.prefix, "");
}

TEST(AwsProfileTest, ParsesAwsDialect) {
  const auto sections = ParseAwsSections(
      "ignored = 1\n"
      "# comment\n"
      "[default]\n"
      "region=r-1\n"
      "  [profile  two words]  \n"
      "[profile a]\r\n"
      "region = r-2 # comment\r\n"
      "aws_secret_access_key = a#b;c=d\n"
      "s3 =\n"
      "  addressing_style = path\n"
      "\tuse_accelerate_endpoint=false\n"
      "output = json\n"
      "  not.nested = 1\n"
      "[services local]\n"
      "s3 = \n"
      "  endpoint_url = http://h:1\n");
  EXPECT_EQ(sections.at("default").at("region"), "r-1");
  const auto& a = sections.at("profile a");
  EXPECT_EQ(a.at("region"), "r-2");
  EXPECT_EQ(a.at("aws_secret_access_key"), "a#b;c=d");
  EXPECT_EQ(a.at("s3.addressing_style"), "path");
  EXPECT_EQ(a.at("s3.use_accelerate_endpoint"), "false");
  EXPECT_EQ(a.at("output"), "json");
  EXPECT_EQ(sections.at("services local").at("s3.endpoint_url"), "http://h:1");
}

TEST(AwsProfileTest, ReadsBothFiles) {
  const ScopedTempDir home;
  std::ofstream(home / "config") << "[profile a]\nregion = r-1\nservices = local\n"
                                    "aws_access_key_id = FROM-CONFIG\n"
                                    "[services local]\ns3 =\n  endpoint_url = http://h:1\n";
  std::ofstream(home / "credentials") << "[a]\naws_access_key_id = FROM-CREDENTIALS\n";
  const Variables variables = {{"AWS_CONFIG_FILE", home / "config"},
                               {"AWS_SHARED_CREDENTIALS_FILE", home / "credentials"}};
  CAIRN_ASSERT_OK_AND_ASSIGN(const AwsProfile profile,
                             ReadAwsProfile("a", EnvironmentOf(variables)));
  EXPECT_EQ(profile.Get("region"), "r-1");
  EXPECT_EQ(profile.Get("aws_access_key_id"), "FROM-CREDENTIALS");
  EXPECT_EQ(profile.Get("services.s3.endpoint_url"), "http://h:1");

  Variables named = variables;
  named["AWS_PROFILE"] = "a";
  CAIRN_ASSERT_OK_AND_ASSIGN(const AwsProfile by_variable,
                             ReadAwsProfile("", EnvironmentOf(named)));
  EXPECT_EQ(by_variable.name, "a");
  named["AWS_PROFILE"] = "missing";
  EXPECT_THAT(ReadAwsProfile("", EnvironmentOf(named)),
              IsError(ErrorCode::kInvalidArgument, "no AWS profile \"missing\""));
}

TEST(AwsProfileTest, FilesAreBelowTheHomeDirectoryAndMayBeAbsent) {
  const ScopedTempDir home;
  const Variables variables = {{"HOME", home.path()}};
  CAIRN_ASSERT_OK_AND_ASSIGN(const AwsProfile absent, ReadAwsProfile("", EnvironmentOf(variables)));
  EXPECT_FALSE(absent.exists);
  std::filesystem::create_directory(home / ".aws");
  std::ofstream(home / ".aws/config") << "[default]\nregion = r-9\n";
  CAIRN_ASSERT_OK_AND_ASSIGN(const AwsProfile present,
                             ReadAwsProfile("", EnvironmentOf(variables)));
  EXPECT_EQ(present.Get("region"), "r-9");
}

}  // namespace
}  // namespace cairn::testing
