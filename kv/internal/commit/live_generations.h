#pragma once
/// The generations that exist, for scans that run concurrently with a delete.

#include <cstdint>
#include <set>
#include <vector>

#include "kv/internal/index/index_records.h"
#include "kv/mutex.h"
#include "kv/thread_annotations.h"

namespace cairn::kv::internal {

/// The generations that exist, as the writer of this process knows them. A scan of a writer's index
/// is not a view of one point in time. If the generation does not exist any more after the scan,
/// the scan may be incomplete. Threads: safe.
class LiveGenerations {
 public:
  void Set(const std::vector<StepEntry>& steps);
  bool Contains(uint64_t generation) const;

 private:
  mutable Mutex mutex_;
  std::set<uint64_t> generations_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::internal
