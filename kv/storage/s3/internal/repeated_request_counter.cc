#include "kv/storage/s3/internal/repeated_request_counter.h"

#include <map>

#include "kv/base/mutex.h"

namespace cairn::kv::internal {

std::atomic<uint64_t>& RepeatedRequestCounter(const std::string& address) {
  // Never destroyed: threads of clients may count until the process ends.
  static Mutex& mutex = *new Mutex;
  static auto& counters = *new std::map<std::string, std::atomic<uint64_t>>;
  const MutexLock lock(mutex);
  return counters[address];
}

}  // namespace cairn::kv::internal
