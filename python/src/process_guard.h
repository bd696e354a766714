#pragma once
/// Objects that do not survive a fork.

#include <unistd.h>

namespace cairn::python {

/// The process that made an object with threads and locks, which do not survive a fork.
class ProcessGuard {
 public:
  bool is_same_process() const { return pid_ == getpid(); }
  /// Raises Invalid in a forked child. Requires the GIL.
  void Check() const;

 private:
  pid_t pid_ = getpid();
};

/// Lets forked children of this process exit although they lack the threads that RocksDB would
/// join. Call it whenever a store is opened; only the first call has an effect.
void LetForkedChildrenExit();

}  // namespace cairn::python
