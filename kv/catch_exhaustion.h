#pragma once
/// Turns what the standard library throws if the system has no more memory or threads into an error
/// value, so that it leaves neither a thread nor the library.

#include <fmt/format.h>

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "kv/error.h"

namespace cairn::kv {

/// Calls `work` and returns its result. kResourceExhausted, naming `what`: there was not enough
/// memory, or a thread could not be started. Other exceptions are not caught: on the threads of a
/// caller, they are the caller's.
template <typename Work>
auto CatchExhaustion(const char* what, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kResourceExhausted, fmt::format("not enough memory for {}", what));
  } catch (const std::length_error&) {
    return Fail(ErrorCode::kResourceExhausted, fmt::format("not enough memory for {}", what));
  } catch (const std::system_error& error) {
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("the system has not enough threads for {}: {}", what, error.what()));
  }
}

}  // namespace cairn::kv
