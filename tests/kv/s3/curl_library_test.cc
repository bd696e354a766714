// The libcurl that is opened at run time.

#include "kv/storage/s3/internal/curl_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/result_matchers.h"

namespace cairn::testing {
namespace {

using kv::internal::LoadCurlLibrary;
using kv::internal::OpenCurlLibrary;

TEST(CurlLibraryTest, ALibraryThatIsMissingIsNamedWithItsPackage) {
  EXPECT_THAT(LoadCurlLibrary("libcurl-missing.so.4"),
              IsError(ErrorCode::kFailedPrecondition, "libcurl-missing.so.4"));
  EXPECT_THAT(LoadCurlLibrary("libcurl-missing.so.4"),
              IsError(ErrorCode::kFailedPrecondition, "install the package libcurl4"));
}

TEST(CurlLibraryTest, ALibraryWithoutTheFunctionsIsRefused) {
  EXPECT_THAT(LoadCurlLibrary("libm.so.6"),
              IsError(ErrorCode::kFailedPrecondition, "has no function curl_"));
}

TEST(CurlLibraryTest, IsOpenedOnce) {
  CAIRN_ASSERT_OK(OpenCurlLibrary());
  EXPECT_EQ(&OpenCurlLibrary(), &OpenCurlLibrary());
}

}  // namespace
}  // namespace cairn::testing
