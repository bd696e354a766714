// Keeps the id in a page that the kernel sets to zero in forked children (MADV_WIPEONFORK).

#include "kv/state/internal/process_id.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>

namespace cairn::kv::internal {
namespace {

/// Returns null if the kernel cannot do this (before Linux 4.14).
std::atomic<pid_t>* NewWipedPage() {
  const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const page =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, bytes, MADV_WIPEONFORK) == 0) return new (page) std::atomic<pid_t>(0);
  ::munmap(page, bytes);
  return nullptr;
}

}  // namespace

// Weak: the simulation, which runs processes as tasks of one, has its own.
[[gnu::weak]] pid_t ProcessId() {
  static std::atomic<pid_t>* const kept = NewWipedPage();
  if (kept == nullptr) return ::getpid();
  pid_t id = kept->load(std::memory_order_relaxed);
  if (id == 0) {
    id = ::getpid();
    kept->store(id, std::memory_order_relaxed);
  }
  return id;
}

}  // namespace cairn::kv::internal
