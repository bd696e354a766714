#include "kv/table/internal/merge_iterator.h"

#include <algorithm>

namespace cairn::kv::internal {

MergeIterator::MergeIterator(std::span<const std::shared_ptr<const TableReader>> tables,
                             TableAccess access, std::string_view end) {
  for (const auto& table : tables) sources_.push_back(table->NewIterator(access, end));
  order_.reserve(sources_.size());
}

Result<void> MergeIterator::Seek(std::string_view key) {
  order_.clear();
  for (size_t source = 0; source < sources_.size(); ++source) {
    CAIRN_TRY(sources_[source]->Seek(key));
    if (sources_[source]->Valid()) Insert(source);
  }
  return {};
}

Result<void> MergeIterator::Next() {
  // Skips the older records of this key. Each source moves behind the first, or out of the order.
  while (order_.size() > 1 && sources_[order_[1]]->key() == key()) CAIRN_TRY(Advance(1));
  return Advance(0);
}

bool MergeIterator::Precedes(size_t a, size_t b) const {
  const int compared = sources_[a]->key().compare(sources_[b]->key());
  return compared < 0 || (compared == 0 && a < b);
}

void MergeIterator::Insert(size_t source) {
  // Mostly ends at the first comparison: sources of many records precede sources of few.
  const auto position =
      std::ranges::find_if(order_, [&](size_t other) { return Precedes(source, other); });
  order_.insert(position, source);
}

Result<void> MergeIterator::Advance(size_t position) {
  const size_t source = order_[position];
  order_.erase(order_.begin() + static_cast<ptrdiff_t>(position));
  CAIRN_TRY(sources_[source]->Next());
  if (sources_[source]->Valid()) Insert(source);
  return {};
}

}  // namespace cairn::kv::internal
