#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Turns what the standard library throws if the system has no more memory or threads into an error
/// value, so that it leaves neither a thread nor the library; and starts threads.

#include <fmt/format.h>

#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "kv/base/error.h"

namespace cairn::kv {

/// Returns kResourceExhausted with `text` and `what`, or with a short text if that needs too much
/// memory.
inline Error Exhausted(const char* text, const char* what) noexcept {
  Error error{.code = ErrorCode::kResourceExhausted};
  try {
    error.message = fmt::format("{} for {}", text, what);
  } catch (const std::exception&) {
    error.message = "out of memory";  // short enough for the string itself
  }
  return error;
}

/// Calls `work` and returns its result. kResourceExhausted, naming `what`: there was not enough
/// memory, or a thread could not be started. Other exceptions are not caught: on the threads of a
/// caller, they are the caller's.
template <typename Work>
auto CatchExhaustion(const char* what, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Fail(Exhausted("not enough memory", what));
  } catch (const std::length_error&) {
    return Fail(Exhausted("not enough memory", what));
  } catch (const std::system_error&) {
    return Fail(Exhausted("the system has not enough threads", what));
  }
}

/// Calls `work` in a destructor, which must not throw: if there is not enough memory, the rest of
/// `work` is left out. The next open for writing removes the objects that this leaves in a store.
template <typename Work>
void CleanUp(const Work& work) noexcept {
  (void)CatchExhaustion("cleaning up", [&]() -> Result<void> {
    work();
    return {};
  });
}

/// Runs `work` on a new thread, which blocks all signals, so that other threads handle the
/// program's signals. `what` completes the error text "the system has not enough threads for ...".
/// `work` must not throw. kResourceExhausted: there are no more threads, or not enough memory.
Result<std::thread> StartThread(const char* what, std::move_only_function<void()> work);

}  // namespace cairn::kv
