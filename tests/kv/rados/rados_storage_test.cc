// RadosStorage on a real cluster: the contract of every storage, and what only RADOS has.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kv/io/internal/file.h"
#include "kv/storage/rados/internal/object_read.h"
#include "kv/storage/rados/internal/object_write.h"
#include "kv/storage/rados/internal/rados_session.h"
#include "tests/kv/rados/ceph_cluster.h"
#include "tests/kv/storage/storage_contract.h"
#include "tests/support/result_matchers.h"
#include "tests/support/seeded_random.h"

namespace cairn::testing {
namespace {

using kv::internal::AsBytes;
using kv::internal::ForEachRadosObject;
using kv::internal::ParseRadosAddress;
using kv::internal::ParseStripeName;
using kv::internal::RadosSession;
using std::chrono::seconds;
using std::chrono::steady_clock;

OpenSameStorage MakeRados(const std::string& parameters) {
  return [address = TestCluster().NewAddress(parameters)] { return OpenRados(address); };
}
OpenSameStorage MakeDefault() { return MakeRados(""); }
// Objects of more than 64 KiB have stripes.
OpenSameStorage MakeStriped() { return MakeRados("&stripe=65536"); }
OpenSameStorage MakeErasureCoded() {
  return MakeRados("&stripe=65536&data_pool=" + TestCluster().ec_pool);
}

INSTANTIATE_TEST_SUITE_P(Rados, StorageContractTest,
                         ::testing::Values(StorageParam{.make = &MakeDefault, .race_count = 20}));
INSTANTIATE_TEST_SUITE_P(RadosStriped, StorageContractTest,
                         ::testing::Values(StorageParam{.make = &MakeStriped, .race_count = 20}));
INSTANTIATE_TEST_SUITE_P(RadosErasureCoded, StorageContractTest,
                         ::testing::Values(StorageParam{.make = &MakeErasureCoded,
                                                        .race_count = 20}));

class RadosStorageTest : public ::testing::Test {
 protected:
  /// Opens a session for the namespace of `address`.
  std::unique_ptr<RadosSession> OpenSession(const std::string& address) {
    auto session = RadosSession::Open(ParseRadosAddress(address).value());
    CAIRN_EXPECT_OK(session);
    return *std::move(session);
  }
  /// Returns how many stripes the pools of the session contain.
  static int CountStripes(RadosSession& session) {
    int count = 0;
    const auto visit = [&](std::string_view object) { count += ParseStripeName(object) ? 1 : 0; };
    EXPECT_EQ(ForEachRadosObject(session, session.heads(), visit), 0);
    if (session.has_data_pool()) {
      EXPECT_EQ(ForEachRadosObject(session, session.stripes(), visit), 0);
    }
    return count;
  }

  const CephCluster cluster_ = TestCluster();
};

TEST_F(RadosStorageTest, StripesOfAReplacedOrRemovedObjectAreRemoved) {
  const std::string address = cluster_.NewAddress("&stripe=65536");
  const auto storage = OpenRados(address);
  const auto session = OpenSession(address);
  const std::vector<std::byte> bytes(200'000);
  for (int i = 0; i < 3; ++i) {
    CAIRN_ASSERT_OK(storage->Put("tables/a", bytes));
    EXPECT_EQ(CountStripes(*session), 4);
  }
  CAIRN_ASSERT_OK(storage->Put("tables/a", AsBytes("small")));
  EXPECT_EQ(CountStripes(*session), 0);
  CAIRN_ASSERT_OK(storage->PutIfAbsent("tables/b", bytes));
  EXPECT_EQ(CountStripes(*session), 4);
  EXPECT_THAT(storage->PutIfAbsent("tables/b", bytes), IsError(ErrorCode::kConflict, "tables/b"));
  EXPECT_EQ(CountStripes(*session), 4);
  CAIRN_ASSERT_OK(storage->Remove("tables/b"));
  EXPECT_EQ(CountStripes(*session), 0);
}

TEST_F(RadosStorageTest, ReadersFollowAnObjectThatAnotherProcessReplaced) {
  const std::string address = cluster_.NewAddress("&stripe=65536");
  const auto writer = OpenRados(address);
  const auto reader = OpenRados(address);
  std::vector<std::byte> bytes(200'000, std::byte{'a'});
  std::vector<std::byte> found(bytes.size());
  CAIRN_ASSERT_OK(writer->Put("tables/a", bytes));
  CAIRN_ASSERT_OK(reader->ReadRange("tables/a", 0, found));  // the reader knows the stripes
  std::ranges::fill(bytes, std::byte{'b'});
  CAIRN_ASSERT_OK(writer->Put("tables/a", bytes));
  CAIRN_ASSERT_OK(reader->ReadRange("tables/a", 0, found));
  EXPECT_TRUE(found == bytes);
  CAIRN_ASSERT_OK(writer->Remove("tables/a"));
  EXPECT_THAT(reader->ReadRange("tables/a", 0, found), IsError(ErrorCode::kNotFound, "tables/a"));
}

TEST_F(RadosStorageTest, AMissingStripeIsDataLoss) {
  const std::string address = cluster_.NewAddress("&stripe=65536");
  const auto storage = OpenRados(address);
  const auto session = OpenSession(address);
  CAIRN_ASSERT_OK(storage->Put("tables/a", std::vector<std::byte>(200'000)));
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto head, ReadHead(*session, "tables/a", {}));
  ASSERT_TRUE(head.layout);
  CAIRN_ASSERT_OK(RemoveStripes(*session, "tables/a", *head.layout, 2));
  std::vector<std::byte> found(200'000);
  EXPECT_THAT(storage->ReadRange("tables/a", 0, found),
              IsError(ErrorCode::kDataLoss, "a stripe of the object is missing"));
  CAIRN_EXPECT_OK(storage->ReadRange("tables/a", 140'000, std::span(found).first(60'000)));
}

TEST_F(RadosStorageTest, LeftoversAreOldStripesThatNoHeadRefersTo) {
  for (const std::string& pool : {std::string(), "&data_pool=" + cluster_.ec_pool}) {
    const std::string address = cluster_.NewAddress("&stripe=65536" + pool);
    const auto storage = OpenRados(address);
    const auto session = OpenSession(address);
    CAIRN_ASSERT_OK(storage->Put("segments/00000001-0123456789abcdef00000000.seg",
                                 std::vector<std::byte>(100'000)));
    CAIRN_ASSERT_OK(storage->Put("other", std::vector<std::byte>(100'000)));
    // Three as a writer that died leaves them, and two of another program; as many requests as the
    // number of one says would take years.
    std::latch written(5);
    for (const std::string& object : {
             std::string("segments/00000001-0123456789abcde000000000.seg:00000000000000aa:0"),
             std::string("segments/00000001-0123456789abcde000000000.seg:00000000000000aa:1"),
             std::string("segments/00000001-0123456789abcde000000000.seg:00000000000000aa:2"),
             std::string("foreign:00000000000000aa:18446744073709551614"),
             std::string("segments/a:00000000000000aa:1"),
         }) {
      StartStripeWrite(*session, object, AsBytes("payload"), [&](int result) {
        EXPECT_EQ(result, 0);
        written.count_down();
      });
    }
    written.wait();
    EXPECT_EQ(CountStripes(*session), 9);
    CAIRN_ASSERT_OK(
        storage->RemoveLeftovers(~0u));  // they are too young: their writer may be alive
    EXPECT_EQ(CountStripes(*session), 9);
    CAIRN_ASSERT_OK(RemoveLeftoverStripes(*session, ~0u, seconds(-1)));
    EXPECT_EQ(CountStripes(*session), 6);
    std::vector<std::byte> found(100'000);
    CAIRN_EXPECT_OK(storage->ReadRange("other", 0, found));
    CAIRN_EXPECT_OK(storage->ReadRange("segments/00000001-0123456789abcdef00000000.seg", 0, found));
  }
}

TEST_F(RadosStorageTest, StripesAreInTheDataPool) {
  const std::string address = cluster_.NewAddress("&stripe=65536");
  const std::string with_data_pool = address + "&data_pool=" + cluster_.ec_pool;
  SeededRandom random;
  std::vector<std::byte> bytes = random.Bytes(300'001);
  CAIRN_ASSERT_OK(OpenRados(with_data_pool)->Put("segments/a", bytes));
  EXPECT_EQ(CountStripes(*OpenSession(address)), 0);
  EXPECT_EQ(CountStripes(*OpenSession(with_data_pool)), 5);
  // The head names the pool, so readers do not need the parameter.
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> found,
                             OpenRados(address)->Read("segments/a", 1 << 20));
  EXPECT_TRUE(found == bytes);
}

TEST_F(RadosStorageTest, NamespacesAreSeparate) {
  const std::string address = cluster_.NewAddress();
  const std::string inner = address.substr(0, address.find('?')) + "/inner?conf=" + cluster_.conf;
  CAIRN_ASSERT_OK(OpenRados(address)->Put("CAIRN", AsBytes("outer")));
  CAIRN_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, OpenRados(inner)->List(""));
  EXPECT_THAT(names, ::testing::IsEmpty());
}

TEST_F(RadosStorageTest, AwaitChangeReturnsWhenAnotherProcessPutsARoot) {
  const std::string address = cluster_.NewAddress();
  const auto reader = OpenRados(address);
  const auto writer = OpenRados(address);
  reader->AwaitChange("roots/", std::chrono::milliseconds(1));  // begins to watch
  for (int i = 0; i < 5; ++i) {
    std::jthread put([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      CAIRN_EXPECT_OK(writer->PutIfAbsent("roots/" + std::to_string(i), AsBytes("root")));
    });
    const auto begin = steady_clock::now();
    reader->AwaitChange("roots/", seconds(60));
    EXPECT_LT(steady_clock::now() - begin, seconds(20)) << i;
  }
  // A change before the call is not missed.
  CAIRN_ASSERT_OK(writer->PutIfAbsent("roots/x", AsBytes("root")));
  const auto begin = steady_clock::now();
  reader->AwaitChange("roots/", seconds(60));
  EXPECT_LT(steady_clock::now() - begin, seconds(20));
}

TEST_F(RadosStorageTest, AwaitChangeIgnoresOtherObjects) {
  const std::string address = cluster_.NewAddress();
  const auto reader = OpenRados(address);
  reader->AwaitChange("roots/", std::chrono::milliseconds(1));
  CAIRN_ASSERT_OK(OpenRados(address)->Put("tables/a", AsBytes("1")));
  CAIRN_ASSERT_OK(OpenRados(address)->Put("pending/a/1", AsBytes("1")));
  const auto begin = steady_clock::now();
  reader->AwaitChange("roots/", std::chrono::milliseconds(300));
  EXPECT_GE(steady_clock::now() - begin, std::chrono::milliseconds(299));
}

TEST_F(RadosStorageTest, RefusesBlocksThatAnOsdMayRefuse) {
  EXPECT_THAT(OpenRados(cluster_.NewAddress())->BeginUpload("segments/a", 65 << 20),
              IsError(ErrorCode::kInvalidArgument, "segments/a"));
}

}  // namespace
}  // namespace cairn::testing
