// Clusters, pools and monitors that fail or are missing, and processes that fork.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "kv/io/internal/file.h"
#include "tests/kv/rados/ceph_cluster.h"
#include "tests/support/forked_child.h"
#include "tests/support/result_matchers.h"
#include "tests/support/scoped_temp_dir.h"
#include "tests/support/seeded_random.h"

namespace cairn::testing {
namespace {

using kv::internal::AsBytes;
using std::chrono::seconds;
using std::chrono::steady_clock;

TEST(RadosFailuresTest, AMonitorThatCannotBeReachedIsAnErrorWithinTheTimeout) {
  const ScopedTempDir dir;
  // Nothing listens at port 1.
  std::ofstream(dir / "ceph.conf") << "[global]\nmon_host = [v2:127.0.0.1:1,v1:127.0.0.1:2]\n"
                                      "auth_client_required = none\n";
  ::setenv("CAIRN_RADOS_TIMEOUT", "2", 1);
  const auto storage = OpenRados("rados:pool/run?conf=" + (dir / "ceph.conf"));
  ::unsetenv("CAIRN_RADOS_TIMEOUT");
  const auto begin = steady_clock::now();
  EXPECT_THAT(storage->Size("CAIRN"), IsError(ErrorCode::kUnavailable, "monitors"));
  EXPECT_LT(steady_clock::now() - begin, seconds(30));
}

TEST(RadosFailuresTest, AMissingConfigurationIsNamed) {
  EXPECT_THAT(OpenRados("rados:pool/run?conf=/nonexistent/ceph.conf")->Size("CAIRN"),
              IsError(ErrorCode::kFailedPrecondition, "/nonexistent/ceph.conf"));
}

TEST(RadosFailuresTest, AMissingPoolIsNamed) {
  const CephCluster cluster = TestCluster();
  EXPECT_THAT(OpenRados("rados:no-such-pool/run?conf=" + cluster.conf)->Size("CAIRN"),
              IsError(ErrorCode::kFailedPrecondition, "no pool \"no-such-pool\""));
  EXPECT_THAT(OpenRados(cluster.NewAddress("&data_pool=no-such-ec"))->Size("CAIRN"),
              IsError(ErrorCode::kFailedPrecondition, "no pool \"no-such-ec\""));
}

TEST(RadosFailuresTest, AForkedChildHasItsOwnConnection) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a forked child";
#endif
  const auto storage = OpenRados(TestCluster().NewAddress());
  CAIRN_ASSERT_OK(storage->Put("lease", AsBytes("parent")));
  ForkedChild child([&] {
    const bool reads = storage->Size("lease").value_or(0) == 6;
    return reads && storage->Put("roots/1", AsBytes("child"));
  });
  EXPECT_EQ(child.Wait(), 0);
  CAIRN_ASSERT_OK_AND_ASSIGN(const uint64_t size_bytes, storage->Size("roots/1"));
  EXPECT_EQ(size_bytes, 5u);
}

/// Kills an OSD, and starts it again at the end of the test.
class KilledOsd {
 public:
  KilledOsd(const CephCluster& cluster, int osd) : cluster_(cluster), osd_(osd) {
    cluster_.Control("kill", osd_);
  }
  ~KilledOsd() { cluster_.Control("revive", osd_); }
  KilledOsd(const KilledOsd&) = delete;
  KilledOsd& operator=(const KilledOsd&) = delete;

 private:
  const CephCluster& cluster_;
  const int osd_;
};

TEST(RadosFailuresTest, TheDeathOfAnOsdDuringAnUploadIsADelay) {
  const CephCluster cluster = TestCluster();
  const std::string address = cluster.NewAddress("&stripe=1048576&data_pool=" + cluster.ec_pool);
  const auto storage = OpenRados(address);
  SeededRandom random;
  std::vector<std::byte> bytes = random.Bytes((40 << 20) + 5);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto writer, storage->Create("segments/a.seg"));
  CAIRN_ASSERT_OK(writer->Append(std::span(bytes).first(10 << 20)));
  {
    const KilledOsd killed(cluster, 1);
    CAIRN_ASSERT_OK(writer->Append(std::span(bytes).subspan(10 << 20)));
    CAIRN_ASSERT_OK(writer->Finish());
    CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> found,
                               OpenRados(address)->Read("segments/a.seg", 1 << 30));
    EXPECT_TRUE(found == bytes);
  }
}

}  // namespace
}  // namespace cairn::testing
