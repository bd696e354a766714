#pragma once
/// Objects that do not survive a fork, and the exit of a forked child.

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "python/src/errors.h"

namespace cairn::python {

/// The process that made an object with threads and locks, which do not survive a fork.
class ProcessGuard {
 public:
  bool is_same_process() const { return pid_ == getpid(); }
  /// Raises Invalid in a forked child. Requires the GIL.
  void Check() const {
    if (is_same_process()) return;
    Throw(Error{.code = ErrorCode::kFailedPrecondition,
                .message = "this store was opened before a fork and cannot be used in the child: "
                           "open it again here; a store with mode 'r' does so by itself"});
  }

 private:
  pid_t pid_ = getpid();
};

/// Lets forked children of this process exit. RocksDB joins its threads in a static destructor; a
/// child does not have them and would wait forever in exit(). It therefore ends before static
/// destructors run, when Python is finalized. Call it whenever a store is opened; only the first
/// call has an effect.
inline void LetForkedChildrenExit() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    on_exit(
        [](int status, void*) {
          std::fflush(nullptr);
          _exit(status);
        },
        nullptr);
  });
  (void)registered;  // fails only without memory; then the child waits in exit()
}

}  // namespace cairn::python
