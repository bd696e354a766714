// The one message for what was carried across a fork.

#include "python/src/process_guard.h"

#include "python/src/errors.h"

namespace cairn::python {

void ProcessGuard::Check() const {
  if (is_same_process()) return;
  Throw(Error{.code = ErrorCode::kFailedPrecondition,
              .message = "this store was opened before a fork and cannot be used in the child: "
                         "open it again here, or start workers with 'spawn'"});
}

}  // namespace cairn::python
