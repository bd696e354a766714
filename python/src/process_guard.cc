// The error for objects that were created before a fork, and the exit of a forked child.

#include "python/src/process_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "python/src/errors.h"

namespace cairn::python {

void ProcessGuard::Check() const {
  if (is_same_process()) return;
  Throw(Error{.code = ErrorCode::kFailedPrecondition,
              .message = "this store was opened before a fork and cannot be used in the child: "
                         "open it again here, or start workers with 'spawn'"});
}

// RocksDB joins its threads in a static destructor. A forked child does not have them and would
// wait forever in exit(). It therefore ends before static destructors run, when Python is
// finalized.
void LetForkedChildrenExit() {
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
