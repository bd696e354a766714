#pragma once
/// Running out of memory as an error like any other, where other ranks have to be told of it.

#include <new>
#include <utility>

#include "kv/error.h"

namespace cairn::core::internal {

/// What `work` returns; kResourceExhausted if it ran out of memory on `what`.
template <typename Work>
auto CatchBadAlloc(const char* what, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kResourceExhausted, std::string("not enough memory for ") + what);
  }
}

}  // namespace cairn::core::internal
