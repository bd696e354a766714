// The address and the credentials of the test server.

#include "tests/kv/s3/s3_server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <random>

#include "kv/storage/s3/internal/s3_storage.h"
#include "tests/support/environment_file.h"
#include "tests/support/result_matchers.h"

namespace cairn::testing {

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
                          .secret_access_key = values["AWS_SECRET_ACCESS_KEY"],
                          .session_token = "",
                          .expiry = std::nullopt}};
}

std::string S3Server::NewAddress() const {
  static std::atomic<int> count = 0;
  return fmt::format("s3://{}/test-{:08x}/{}-{}", bucket, std::random_device{}(), ::getpid(),
                     count++);
}

kv::S3Options S3Server::Options() const {
  kv::S3Options options;
  options.endpoint = endpoint;
  options.credentials = [credentials = credentials] { return credentials; };
  options.timeout = std::chrono::seconds(30);
  return options;
}

std::shared_ptr<kv::Storage> OpenTestStorage(const std::string& address,
                                             const kv::S3Options& options) {
  Result<std::shared_ptr<kv::Storage>> storage = kv::internal::OpenS3Storage(address, options);
  CAIRN_EXPECT_OK(storage);
  return storage ? *std::move(storage) : nullptr;
}

}  // namespace cairn::testing
