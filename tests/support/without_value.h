#pragma once
/// Results of operations whose value does not matter.

#include "kv/base/error.h"

namespace cairn::testing {

template <typename T>
Result<void> WithoutValue(const Result<T>& result) {
  return result ? Result<void>() : Fail(result.error());
}

}  // namespace cairn::testing
