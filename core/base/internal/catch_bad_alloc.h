#pragma once
/// Turns std::bad_alloc into an error value, so that a rank can report it to the other ranks.

#include <new>
#include <string>
#include <utility>

#include "kv/error.h"

namespace cairn::core::internal {

/// Calls `work` and returns its result. kResourceExhausted, naming `what`: there was not enough
/// memory.
template <typename Work>
auto CatchBadAlloc(const char* what, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kResourceExhausted, std::string("not enough memory for ") + what);
  }
}

}  // namespace cairn::core::internal
