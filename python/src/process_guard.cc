// The one message for what was carried across a fork, and the way out of a forked child.

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
// wait for ever in exit(), so it leaves before static destructors run; by then Python is finalized.
void LetForkedChildrenExit() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    on_exit(
        [](int status, void*) {
          std::fflush(nullptr);
          _exit(status);
        },
        nullptr);
  });
  (void)registered;  // out of memory at worst, and then the child waits
}

}  // namespace cairn::python
