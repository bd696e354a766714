#pragma once
/// The Ceph cluster of the tests, which tests/support/ceph.sh starts.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kv/storage/storage.h"

namespace cairn::testing {

struct CephCluster {
  std::string directory;
  std::string conf;
  std::string pool;
  std::string ec_pool;  // erasure-coded

  /// Returns "rados:POOL/<a namespace that no other call returns>?conf=FILE", and `parameters`,
  /// such as "&stripe=65536".
  std::string NewAddress(const std::string& parameters = "") const;
  /// Runs tests/support/ceph.sh, or fails the test: "kill", 1 kills OSD 1.
  void Control(const std::string& action, int osd) const;
};

/// Reads the file `environment` in the directory CAIRN_TEST_CEPH. Fails the test if there is none.
CephCluster TestCluster();

/// Opens the storage at `address`. Fails the test if that fails.
std::shared_ptr<kv::Storage> OpenRados(const std::string& address);

}  // namespace cairn::testing
