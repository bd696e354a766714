// The configuration and the pools of the test cluster.

#include "tests/kv/rados/ceph_cluster.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <random>

#include "kv/storage/rados/internal/rados_storage.h"
#include "tests/support/environment_file.h"
#include "tests/support/result_matchers.h"

namespace cairn::testing {

CephCluster TestCluster() {
  const char* const directory = std::getenv("CAIRN_TEST_CEPH");
  CephCluster cluster{.directory = directory != nullptr ? directory : "."};
  auto values = ReadEnvironmentFile(
      cluster.directory, "run `tests/support/ceph.sh start DIR` and set CAIRN_TEST_CEPH=DIR");
  cluster.conf = values["CEPH_CONF"];
  cluster.pool = values["CAIRN_TEST_CEPH_POOL"];
  cluster.ec_pool = values["CAIRN_TEST_CEPH_EC_POOL"];
  return cluster;
}

std::string CephCluster::NewAddress(const std::string& parameters) const {
  static std::atomic<int> count = 0;
  return fmt::format("rados:{}/test-{:08x}/{}-{}?conf={}{}", pool, std::random_device{}(),
                     ::getpid(), count++, conf, parameters);
}

void CephCluster::Control(const std::string& action, int osd) const {
  const std::string command = fmt::format("{} {} {} {}", CAIRN_CEPH_SCRIPT, action, directory, osd);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

std::shared_ptr<kv::Storage> OpenRados(const std::string& address) {
  Result<std::shared_ptr<kv::Storage>> storage = kv::internal::OpenRadosStorage(address);
  CAIRN_EXPECT_OK(storage);
  return storage ? *std::move(storage) : nullptr;
}

}  // namespace cairn::testing
