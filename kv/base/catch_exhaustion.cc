#include "kv/base/catch_exhaustion.h"

#include <pthread.h>
#include <signal.h>

namespace cairn::kv {

Result<std::thread> StartThread(const char* what, std::move_only_function<void()> work) {
  // A thread inherits the mask of the thread that starts it.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  auto started =
      CatchExhaustion(what, [&]() -> Result<std::thread> { return std::thread(std::move(work)); });
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return started;
}

}  // namespace cairn::kv
