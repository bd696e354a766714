// S3Storage on a real server: the contract of every storage, and what only S3 has.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "tests/kv/s3/s3_server.h"
#include "tests/kv/storage/storage_contract.h"
#include "tests/support/result_matchers.h"

namespace cairn::testing {
namespace {

OpenSameStorage MakeS3() {
  const S3Server server = TestServer();
  return [server, address = server.NewAddress()] {
    return OpenTestStorage(address, server.Options());
  };
}

// SeaweedFS lets the losers of a race wait for one to three seconds.
INSTANTIATE_TEST_SUITE_P(S3, StorageContractTest,
                         ::testing::Values(StorageParam{.make = &MakeS3, .race_count = 6}));

}  // namespace
}  // namespace cairn::testing
