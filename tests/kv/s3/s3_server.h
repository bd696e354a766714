#pragma once
/// The S3 server of the tests, which tests/support/seaweed.sh starts.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kv/base/s3_options.h"
#include "kv/storage/storage.h"

namespace cairn::testing {

struct S3Server {
  std::string endpoint;
  std::string tls_endpoint;
  std::string ca_bundle;  // for `tls_endpoint`
  std::string bucket;
  kv::S3Credentials credentials;

  /// Returns "s3://BUCKET/<a prefix that no other call returns>".
  std::string NewAddress() const;
  /// Returns options with the credentials, and a timeout that is short enough for tests.
  kv::S3Options Options() const;
};

/// Reads the file `environment` in the directory CAIRN_TEST_S3_SERVER. Fails the test if there is
/// none.
S3Server TestServer();

/// Opens the storage at `address`. Fails the test if that fails.
std::shared_ptr<kv::Storage> OpenTestStorage(const std::string& address,
                                             const kv::S3Options& options);

}  // namespace cairn::testing
