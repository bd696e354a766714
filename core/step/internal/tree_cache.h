#pragma once
/// The tree of the step that was read last, for reads of a few keys.

#include <cstdint>
#include <memory>

#include "core/state_dict/internal/stored_tree.h"
#include "core/step/internal/lookup.h"
#include "kv/base/digest.h"
#include "kv/base/mutex.h"
#include "kv/base/thread_annotations.h"

namespace cairn::core::internal {

/// Keeps the last tree whose StructureRecord has at most kMaxBytes. Steps with equal trees, as
/// those of one training job, share it. Threads: all members are safe.
class TreeCache {
 public:
  /// Of StructureRecords: about 2.5 million tensors.
  static constexpr uint64_t kMaxBytes = 64 << 20;

  /// Returns the tree of the step. kDataLoss: its StructureRecord is missing or damaged.
  /// kUnimplemented: a newer version wrote it. Cost: reads the StructureRecord, unless it is kept.
  Result<std::shared_ptr<const StoredTree>> Find(const StepView& view);

 private:
  Mutex mutex_;
  kv::Digest digest_ CAIRN_GUARDED_BY(mutex_);                       // of the record of tree_
  std::shared_ptr<const StoredTree> tree_ CAIRN_GUARDED_BY(mutex_);  // shared with its readers
};

}  // namespace cairn::core::internal
