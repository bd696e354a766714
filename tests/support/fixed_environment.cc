// For programs that create files of the repository: versions of functions of the C library and of
// RocksDB that return the same time, host, process and random numbers in each run. So what such a
// program writes changes only where the format does.

#include "tests/support/fixed_environment.h"

#include <dlfcn.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

namespace cairn::testing {
namespace {

constexpr int64_t kBeginSeconds = 1'767'225'600;  // 2026-01-01 00:00:00 UTC
std::atomic<int64_t> passed_seconds = 0;

/// Returns the next number of a sequence. Object names and uuids have separate sequences, so that a
/// change of the number of one does not change the others. Threads other than the first need random
/// numbers only for names that do not remain.
uint64_t Next(size_t size) {
  static std::atomic<uint64_t> counts[3];
  const bool is_first_thread = ::syscall(SYS_gettid) == ::syscall(SYS_getpid);
  const int sequence = !is_first_thread ? 0 : size == sizeof(uint64_t) ? 1 : 2;
  uint64_t value = (++counts[sequence] * 4 + sequence) * 0x9e3779b97f4a7c15;  // splitmix64
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

void AdvanceClock() { ++passed_seconds; }

}  // namespace cairn::testing

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto* const real =
      reinterpret_cast<decltype(::clock_gettime)*>(::dlsym(RTLD_NEXT, "clock_gettime"));
  if (clock != CLOCK_REALTIME) return real(clock, time);
  *time = {.tv_sec = cairn::testing::kBeginSeconds + cairn::testing::passed_seconds, .tv_nsec = 0};
  return 0;
}

pid_t getpid() noexcept { return 4711; }

int gethostname(char* name, size_t size) noexcept {
  std::strncpy(name, "node-1", size);
  return 0;
}

/// A uuid begins with four zeros, so that the first epoch of a store is 1.
ssize_t getrandom(void* bytes, size_t size, unsigned) noexcept {
  auto* const begin = static_cast<char*>(bytes);
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t value = cairn::testing::Next(size);
    std::memcpy(begin + at, &value, size - at < sizeof(value) ? size - at : sizeof(value));
  }
  if (size > sizeof(uint64_t)) std::memset(bytes, 0, sizeof(uint32_t));
  return static_cast<ssize_t>(size);
}

/// RocksDB writes this identifier of a process into each table.
std::string RocksSession(void*) asm("_ZN7rocksdb6DBImpl19GenerateDbSessionIdB5cxx11EPNS_3EnvE");
std::string RocksSession(void*) { return "00000000000000000000"; }

}  // extern "C"
