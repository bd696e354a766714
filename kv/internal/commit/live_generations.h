#pragma once
/// Which generations exist, as the writer of this process knows them.

#include <cstdint>
#include <set>
#include <vector>

#include "kv/internal/index/records.h"
#include "kv/mutex.h"
#include "kv/thread_annotations.h"

namespace cairn::kv::internal {

/// Generations that exist, as the writer of this process knows them. A scan in a writer's index is
/// not a view of one moment; a generation that is gone after the scan means that it may have been
/// cut.
class LiveGenerations {
 public:
  void Set(const std::vector<StepEntry>& steps);
  bool Contains(uint64_t generation) const;

 private:
  mutable Mutex mutex_;
  std::set<uint64_t> generations_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::internal
