#pragma once
/// Matchers for the success, or for the error, of a Result.
///
///   CAIRN_ASSERT_OK_AND_ASSIGN(auto store, CheckpointStore::Open(...));
///   CAIRN_EXPECT_OK(store->Close());
///   EXPECT_THAT(store->List(7), IsError(ErrorCode::kNotFound, "no such step"));

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv/base/error.h"

namespace cairn::testing {

template <typename T>
::testing::AssertionResult IsOk(const Result<T>& result) {
  if (result) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << ErrorCodeName(result.error().code) << ": " << result.error().ToString();
}

/// Matches a Result that failed with `code` and whose formatted error contains `substring`.
MATCHER_P2(IsError, code, substring,
           std::string("fails with ") + ErrorCodeName(code) + " and says '" + substring + "'") {
  if (arg.has_value()) {
    *result_listener << "which succeeded";
    return false;
  }
  *result_listener << "which is " << ErrorCodeName(arg.error().code) << ": "
                   << arg.error().ToString();
  return arg.error().code == code && arg.error().ToString().find(substring) != std::string::npos;
}

/// Matches a Result that failed with `hint`.
MATCHER_P(HasHint, hint, "fails with another hint") {
  return !arg.has_value() && arg.error().hint == hint;
}

}  // namespace cairn::testing

#define CAIRN_ASSERT_OK(expression) ASSERT_TRUE(::cairn::testing::IsOk((expression)))
#define CAIRN_EXPECT_OK(expression) EXPECT_TRUE(::cairn::testing::IsOk((expression)))
#define CAIRN_ASSERT_OK_AND_ASSIGN(target, expression) \
  CAIRN_ASSERT_OK_AND_ASSIGN_INNER(CAIRN_CONCAT(cairn_result_, __LINE__), target, expression)
#define CAIRN_ASSERT_OK_AND_ASSIGN_INNER(result, target, expression) \
  auto result = (expression);                                        \
  ASSERT_TRUE(::cairn::testing::IsOk(result));                       \
  target = *std::move(result)
