// Addresses, layouts and the library of RADOS stores, without a cluster.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <set>
#include <string>

#include "kv/storage/open/open_storage.h"
#include "kv/storage/rados/internal/rados_api.h"
#include "kv/storage/rados/internal/rados_session.h"
#include "kv/storage/rados/internal/stripe_layout.h"
#include "tests/support/result_matchers.h"

namespace cairn::testing {
namespace {

using kv::internal::DecodeLayout;
using kv::internal::EncodeLayout;
using kv::internal::LoadRadosApi;
using kv::internal::ParseRadosAddress;
using kv::internal::ParseStripeName;
using kv::internal::RadosSettings;
using kv::internal::StripeLayout;
using kv::internal::StripeName;

TEST(RadosAddressTest, PoolsOfOtherClustersHaveOtherIdentities) {
  std::set<std::string> identities;
  for (const char* address : {"rados:p/n", "rados:p/n?conf=/etc/a.conf", "rados:p/n?conf=/b.conf",
                              "rados:p/m?conf=/b.conf"}) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, kv::OpenStorage(address));
    identities.insert(storage->identity());
  }
  EXPECT_EQ(identities.size(), 4u);
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto storage, kv::OpenStorage("rados:p/n?conf=/b.conf&id=me"));
  EXPECT_TRUE(identities.contains(storage->identity())) << "the user does not matter";
}

TEST(RadosAddressTest, HasAPoolANamespaceAndParameters) {
  CAIRN_ASSERT_OK_AND_ASSIGN(
      const RadosSettings settings,
      ParseRadosAddress("rados:pool/team/run/?conf=/etc/a.conf&id=me&data_pool=ec&stripe=8388608"));
  EXPECT_EQ(settings.address, "rados:pool/team/run");
  EXPECT_EQ(settings.pool, "pool");
  EXPECT_EQ(settings.name_space, "team/run");
  EXPECT_EQ(settings.conf, "/etc/a.conf");
  EXPECT_EQ(settings.id, "me");
  EXPECT_EQ(settings.data_pool, "ec");
  EXPECT_EQ(settings.stripe_bytes, 8u << 20);
  CAIRN_ASSERT_OK_AND_ASSIGN(const RadosSettings defaults, ParseRadosAddress("rados:p/n"));
  EXPECT_EQ(defaults.stripe_bytes, 16u << 20);
  EXPECT_EQ(defaults.timeout, std::chrono::seconds(60));
}

TEST(RadosAddressTest, RefusesOtherAddresses) {
  for (const char* address :
       {"rados:pool", "rados:pool/", "rados:/n", "rados:pool//n", "rados:p/n?stripe=1",
        "rados:p/n?stripe=x", "rados:p/n?stripe=1073741824", "rados:p/n?conf=", "rados:p/n?a=b"}) {
    EXPECT_THAT(kv::OpenStorage(address), IsError(ErrorCode::kInvalidArgument, "")) << address;
  }
}

TEST(RadosAddressTest, RefusesATimeoutThatIsNotANumber) {
  ::setenv("CAIRN_RADOS_TIMEOUT", "soon", 1);
  EXPECT_THAT(ParseRadosAddress("rados:p/n"),
              IsError(ErrorCode::kInvalidArgument, "CAIRN_RADOS_TIMEOUT is 'soon'"));
  ::unsetenv("CAIRN_RADOS_TIMEOUT");
}

TEST(RadosLibraryTest, ALibraryThatIsMissingIsNamedWithItsPackage) {
  EXPECT_THAT(LoadRadosApi("librados-missing.so.2"),
              IsError(ErrorCode::kFailedPrecondition, "librados-missing.so.2"));
  EXPECT_THAT(LoadRadosApi("librados-missing.so.2"),
              IsError(ErrorCode::kFailedPrecondition, "install the package librados2"));
}

TEST(RadosLibraryTest, ALibraryWithoutTheFunctionsIsRefused) {
  EXPECT_THAT(LoadRadosApi("libm.so.6"),
              IsError(ErrorCode::kFailedPrecondition, "has no function rados_"));
}

TEST(StripeLayoutTest, IsReadBack) {
  const StripeLayout layout{.size_bytes = 100'000'000'000,
                            .stripe_bytes = 16 << 20,
                            .pool_id = 7,
                            .unique = "0123456789abcdef"};
  EXPECT_EQ(EncodeLayout(layout), "1 100000000000 16777216 7 0123456789abcdef");
  CAIRN_ASSERT_OK_AND_ASSIGN(const StripeLayout found, DecodeLayout(EncodeLayout(layout)));
  EXPECT_EQ(found, layout);
  EXPECT_EQ(layout.stripe_count(), 5961u);
}

TEST(StripeLayoutTest, RefusesTextsThatAreNotLayouts) {
  for (const char* text :
       {"", "1", "1 10 0 7 0123456789abcdef", "1 10 5 7 0123", "1 -1 5 7 0123456789abcdef",
        "1 10 5 7 0123456789abcdef 1", "1  5 7 0123456789abcdef", "x 10 5 7 0123456789abcdef"}) {
    EXPECT_THAT(DecodeLayout(text), IsError(ErrorCode::kDataLoss, "damaged")) << text;
  }
  EXPECT_THAT(DecodeLayout("2 anything"), IsError(ErrorCode::kUnimplemented, "version 2"));
}

TEST(StripeLayoutTest, NamesOfStripesAreReadBack) {
  const std::string object = StripeName("segments/a.seg", "0123456789abcdef", 12);
  EXPECT_EQ(object, "segments/a.seg:0123456789abcdef:12");
  const auto parsed = ParseStripeName(object);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->name, "segments/a.seg");
  EXPECT_EQ(parsed->unique, "0123456789abcdef");
  EXPECT_EQ(parsed->index, 12u);
  for (const char* other :
       {"segments/a.seg", ":changes", "a:0123456789abcdef", "a:012:1",
        "a:0123456789abcdef:", "a:0123456789abcdef:1x", "/a:0123456789abcdef:1"}) {
    EXPECT_FALSE(ParseStripeName(other)) << other;
  }
}

}  // namespace
}  // namespace cairn::testing
