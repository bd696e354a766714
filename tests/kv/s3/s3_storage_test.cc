// S3Storage on a real server: the contract of every storage, and what only S3 has.

#include "kv/storage/s3/internal/s3_storage.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/io/internal/file.h"
#include "kv/storage/s3/internal/s3_client.h"
#include "kv/storage/s3/internal/s3_responses.h"
#include "kv/storage/s3/internal/s3_settings.h"
#include "kv/storage/storage.h"
#include "tests/kv/storage/storage_contract.h"
#include "tests/support/environment_file.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::testing {
namespace {

using kv::internal::AsBytes;

/// The server that tests/support/seaweed.sh starts.
struct S3Server {
  std::string endpoint;
  std::string tls_endpoint;
  std::string ca_bundle;
  std::string bucket;
  kv::S3Credentials credentials;

  /// Returns "s3://BUCKET/<a prefix that no other call returns>".
  std::string NewAddress() const {
    static std::atomic<int> count = 0;
    return fmt::format("s3://{}/test-{:08x}/{}-{}", bucket, std::random_device{}(), ::getpid(),
                       count++);
  }
  /// Returns options with the credentials, and a timeout that is short enough for tests.
  kv::S3Options Options() const {
    kv::S3Options options;
    options.endpoint = endpoint;
    options.credentials = [credentials = credentials] { return credentials; };
    options.timeout = std::chrono::seconds(30);
    return options;
  }
};

/// Reads the file `environment` in the directory CAIRN_TEST_S3_SERVER. Fails the test if there is
/// none.
S3Server TestServer() {
  const char* const directory = std::getenv("CAIRN_TEST_S3_SERVER");
  auto values = ReadEnvironmentFile(
      directory != nullptr ? directory : ".",
      "run `tests/support/seaweed.sh start DIR` and set CAIRN_TEST_S3_SERVER=DIR");
  return {.endpoint = values["AWS_ENDPOINT_URL_S3"],
          .tls_endpoint = values["CAIRN_TEST_S3_TLS_ENDPOINT"],
          .ca_bundle = values["CAIRN_TEST_S3_CA_BUNDLE"],
          .bucket = values["CAIRN_TEST_S3_BUCKET"],
          .credentials = {.access_key_id = values["AWS_ACCESS_KEY_ID"],
                          .secret_access_key = values["AWS_SECRET_ACCESS_KEY"]}};
}

/// Opens the storage at `address`. Fails the test if that fails.
std::shared_ptr<kv::Storage> OpenTestStorage(const std::string& address,
                                             const kv::S3Options& options) {
  Result<std::shared_ptr<kv::Storage>> storage = kv::internal::OpenS3Storage(address, options);
  CAIRN_EXPECT_OK(storage);
  return storage ? *std::move(storage) : nullptr;
}

OpenSameStorage MakeS3() {
  const S3Server server = TestServer();
  return [server, address = server.NewAddress()] {
    return OpenTestStorage(address, server.Options());
  };
}

// SeaweedFS lets the losers of a race wait for one to three seconds.
INSTANTIATE_TEST_SUITE_P(S3, StorageContractTest,
                         ::testing::Values(StorageParam{.make = &MakeS3, .race_count = 6}));

class S3StorageTest : public ::testing::Test {
 protected:
  const S3Server server_ = TestServer();
  const std::string address_ = server_.NewAddress();
};

TEST_F(S3StorageTest, AcceptsAServerWithConditionalWrites) {
  const auto storage = OpenTestStorage(address_, server_.Options());
  CAIRN_ASSERT_OK(storage->PutIfAbsent("CAIRN", AsBytes("identity")));
  EXPECT_THAT(storage->PutIfAbsent("CAIRN", AsBytes("other")),
              IsError(ErrorCode::kConflict, "CAIRN"));
}

TEST_F(S3StorageTest, TransfersOverTlsWithACertificateAuthorityOfTheServer) {
  kv::S3Options options = server_.Options();
  options.endpoint = server_.tls_endpoint;
  options.ca_bundle = server_.ca_bundle;
  const auto storage = OpenTestStorage(address_, options);
  SeededRandom random;
  std::vector<std::byte> bytes = random.Bytes(3 << 20);
  CAIRN_ASSERT_OK(storage->Put("tables/a.sst", bytes));
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> found,
                             storage->Read("tables/a.sst", 4 << 20));
  EXPECT_TRUE(found == bytes);
}

TEST_F(S3StorageTest, RefusesAServerWhoseCertificateIsNotKnown) {
  kv::S3Options options = server_.Options();
  options.endpoint = server_.tls_endpoint;
  const auto storage = OpenTestStorage(address_, options);
  EXPECT_THAT(storage->Put("lease", AsBytes("1")),
              IsError(ErrorCode::kFailedPrecondition, "AWS_CA_BUNDLE"));
}

TEST_F(S3StorageTest, WrongCredentialsAreErrorsWithAdviceAndWithoutTheSecret) {
  kv::S3Options options = server_.Options();
  for (const bool known_key : {true, false}) {
    options.credentials = [key = known_key ? server_.credentials.access_key_id : "no-such-key"] {
      return kv::S3Credentials{.access_key_id = key, .secret_access_key = "WRONG-SECRET"};
    };
    const Result<void> put = OpenTestStorage(address_, options)->Put("lease", AsBytes("1"));
    EXPECT_THAT(put, IsError(ErrorCode::kUnavailable, "answered 403"));
    EXPECT_THAT(put.error().ToString(), ::testing::HasSubstr("check"));
    EXPECT_THAT(put.error().ToString(), ::testing::Not(::testing::HasSubstr("WRONG-SECRET")));
  }
}

TEST_F(S3StorageTest, PutsAndReadsLargeObjectsInParts) {
  const auto storage = OpenTestStorage(address_, server_.Options());
  SeededRandom random;
  std::vector<std::byte> bytes = random.Bytes(70 << 20);  // more than a single PUT
  CAIRN_ASSERT_OK(storage->Put("tables/large.sst", bytes));
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> found,
                             storage->Read("tables/large.sst", 80 << 20));
  EXPECT_TRUE(found == bytes);
}

// A process that is killed leaves an upload, whose parts take space although no listing shows them.
TEST_F(S3StorageTest, AbortsUploadsThatWereLeft) {
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto address,
                             kv::internal::ParseS3Address(address_, server_.Options()));
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const auto settings,
      kv::internal::ResolveS3Settings(address, {}, [](const char*) { return std::string(); }));
  kv::internal::S3Client client(settings, server_.Options().credentials);
  const auto count_uploads = [&]() -> size_t {
    const auto response =
        client.Perform({.operation = "list uploads",
                        .of_bucket = true,
                        .parameters = {{"prefix", settings.prefix}, {"uploads", ""}}});
    CAIRN_EXPECT_OK(response);
    if (!response) return 0;
    const auto listing = kv::internal::ParseS3Listing(response->body);
    CAIRN_EXPECT_OK(listing);
    return listing ? listing->entries.size() : 0;
  };
  for (const char* name : {"segments/00000001-0123456789abcdef00000000.seg",
                           "tables/00000001-0123456789abcdef00000000.sst"}) {
    CAIRN_ASSERT_OK(client.Perform({.operation = "begin an upload",
                                    .name = name,
                                    .method = "POST",
                                    .parameters = {{"uploads", ""}}}));
  }
  EXPECT_EQ(count_uploads(), 2u);
  CAIRN_ASSERT_OK(OpenTestStorage(address_, server_.Options())->RemoveLeftovers(~0u));
  EXPECT_EQ(count_uploads(), 0u);
}

TEST_F(S3StorageTest, PrefixesMayHaveCharactersThatAreEncoded) {
  const auto storage = OpenTestStorage(address_ + "/a=b c+d/\u00e9", server_.Options());
  CAIRN_ASSERT_OK(storage->Put("roots/1.root", AsBytes("1")));
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, storage->List("roots/"));
  EXPECT_THAT(names, ::testing::ElementsAre("roots/1.root"));
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t size_bytes, storage->Size("roots/1.root"));
  EXPECT_EQ(size_bytes, 1u);
}

}  // namespace
}  // namespace cairn::testing
