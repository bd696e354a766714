#include "core/step/internal/tree_cache.h"

#include <utility>

namespace cairn::core::internal {

Result<std::shared_ptr<const StoredTree>> TreeCache::Find(const StepView& view) {
  {
    const MutexLock lock(mutex_);
    if (tree_ != nullptr && digest_ == view.step.structure) return tree_;
  }
  CAIRN_TRY_ASSIGN(std::vector<std::byte> record, FindStructure(view));
  // A damaged record must not become the tree of other steps.
  const bool keeps = record.size() <= kMaxBytes && kv::PayloadDigest(record) == view.step.structure;
  CAIRN_TRY_ASSIGN(std::shared_ptr<const StoredTree> tree, StoredTree::Open(std::move(record)));
  if (keeps) {
    const MutexLock lock(mutex_);
    digest_ = view.step.structure;
    tree_ = tree;
  }
  return tree;
}

}  // namespace cairn::core::internal
