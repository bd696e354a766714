#pragma once
/// The Ceph cluster of the tests, which tests/support/ceph.sh starts.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>

#include "kv/storage/rados/internal/rados_storage.h"
#include "kv/storage/storage.h"
#include "tests/support/environment_file.h"
#include "tests/support/result_matchers.h"

namespace cairn::testing {

struct CephCluster {
  std::string directory;
  std::string conf;
  std::string pool;
  std::string ec_pool;  // erasure-coded

  /// Returns "rados:POOL/<a namespace that no other call returns>?conf=FILE", and `parameters`,
  /// such as "&stripe=65536".
  std::string NewAddress(const std::string& parameters = "") const {
    static std::atomic<int> count = 0;
    return fmt::format("rados:{}/test-{:08x}/{}-{}?conf={}{}", pool, std::random_device{}(),
                       ::getpid(), count++, conf, parameters);
  }
  /// Runs tests/support/ceph.sh, or fails the test: "kill", 1 kills OSD 1.
  void Control(const std::string& action, int osd) const {
    const std::string command =
        fmt::format("{} {} {} {}", CAIRN_CEPH_SCRIPT, action, directory, osd);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
};

/// Reads the file `environment` in the directory CAIRN_TEST_CEPH. Fails the test if there is none.
inline CephCluster TestCluster() {
  const char* const given = std::getenv("CAIRN_TEST_CEPH");
  const std::string directory = given != nullptr ? given : ".";
  auto values = ReadEnvironmentFile(
      directory, "run `tests/support/ceph.sh start DIR` and set CAIRN_TEST_CEPH=DIR");
  return {.directory = directory,
          .conf = values["CEPH_CONF"],
          .pool = values["CAIRN_TEST_CEPH_POOL"],
          .ec_pool = values["CAIRN_TEST_CEPH_EC_POOL"]};
}

/// Opens the storage at `address`. Fails the test if that fails.
inline std::shared_ptr<kv::Storage> OpenRados(const std::string& address) {
  Result<std::shared_ptr<kv::Storage>> storage = kv::internal::OpenRadosStorage(address);
  CAIRN_EXPECT_OK(storage);
  return storage ? *std::move(storage) : nullptr;
}

}  // namespace cairn::testing
