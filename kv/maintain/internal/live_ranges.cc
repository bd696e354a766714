// Ranges by segment and offset. Overlapping ranges are joined when they are added.

#include "kv/maintain/internal/live_ranges.h"

#include <algorithm>

#include "kv/base/digest.h"

namespace cairn::kv::internal {
namespace {

uint64_t EndOf(const Extent& extent) { return extent.offset_bytes + extent.length_bytes; }

/// Returns whether both have the same pages where they overlap. Requires that `a` begins first.
bool HaveSamePages(const Extent& a, const Extent& b) {
  const uint64_t skipped = b.offset_bytes - a.offset_bytes;
  return skipped % kPageBytes == 0 &&
         b.page_digests_offset_bytes == a.page_digests_offset_bytes + 8 * (skipped / kPageBytes);
}

}  // namespace

LiveRanges::LiveRanges(std::set<uint64_t> segments, bool with_raw)
    : segments_(std::move(segments)), with_raw_(with_raw) {}

VersionId LiveRanges::IdOf(const ChunkExtents& extents) {
  const Extent& last = extents.deltas.empty() ? extents.payload.back() : extents.deltas.back();
  return {last.segment_id, last.offset_bytes};
}

Result<void> LiveRanges::Add(std::string_view key, const ChunkEntry& entry) {
  const uint64_t order = next_order_++;
  std::optional<VersionId> user;
  const bool is_raw_version = with_raw_ && entry.extents.payload.size() == 1;
  if (!entry.extents.deltas.empty() || is_raw_version) {
    user = IdOf(entry.extents);
    const auto [version, is_new] = versions_.try_emplace(*user);
    if (is_new) {
      version->second = {.key = std::string(key), .entry = entry, .order = order, .moved_to = {}};
    } else if (version->second.entry.extents != entry.extents) {
      user = std::nullopt;  // two chunks have an extent in common
    }
  }
  const bool is_aligned = entry.extents.payload.size() > 1;
  for (const Extent& extent : entry.extents.payload) {
    if (!Contains(extent.segment_id) || extent.length_bytes == 0) continue;
    CAIRN_TRY(AddExtent({.extent = extent,
                         .order = order,
                         .key = std::string(key),
                         .is_delta = false,
                         .is_aligned = is_aligned || extent.length_bytes >= kPageBytes,
                         .only_user = user,
                         .is_replaced = false,
                         .moved_to = {}}));
  }
  for (const Extent& extent : entry.extents.deltas) {
    if (!Contains(extent.segment_id)) continue;
    CAIRN_TRY(AddExtent({.extent = extent,
                         .order = order,
                         .key = std::string(key),
                         .is_delta = true,
                         .is_aligned = false,
                         .only_user = user,
                         .is_replaced = false,
                         .moved_to = {}}));
  }
  return {};
}

Result<void> LiveRanges::AddExtent(LiveRange added) {
  ByOffset& ranges = ranges_[added.extent.segment_id];
  auto at = ranges.upper_bound(added.extent.offset_bytes);
  if (at != ranges.begin() && EndOf(std::prev(at)->second.extent) > added.extent.offset_bytes) --at;
  while (at != ranges.end() && at->first < EndOf(added.extent)) {
    LiveRange& other = at->second;
    const bool is_first = other.extent.offset_bytes <= added.extent.offset_bytes;
    const Extent& first = is_first ? other.extent : added.extent;
    if (!HaveSamePages(first, is_first ? added.extent : other.extent)) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "two chunks have different pages at the same place of a segment",
                        .key = added.key});
    }
    if (other.only_user != added.only_user) other.only_user = std::nullopt;
    other.is_delta |= added.is_delta;
    other.is_aligned |= added.is_aligned;
    const uint64_t end = std::max(EndOf(other.extent), EndOf(added.extent));
    if (is_first && end == EndOf(other.extent)) return {};  // usually it is the same extent
    Extent joined = first;
    joined.length_bytes = end - joined.offset_bytes;
    other.extent = joined;
    added = std::move(other);
    at = ranges.erase(at);
  }
  const uint64_t offset_bytes = added.extent.offset_bytes;
  ranges.emplace(offset_bytes, std::move(added));
  return {};
}

void LiveRanges::Keep(const std::set<uint64_t>& segments) {
  segments_ = segments;
  std::erase_if(ranges_, [&](const auto& of_segment) { return !Contains(of_segment.first); });
}

uint64_t LiveRanges::live_bytes(uint64_t segment_id) const {
  const auto found = ranges_.find(segment_id);
  if (found == ranges_.end()) return 0;
  uint64_t bytes = 0;
  for (const auto& [offset, range] : found->second) bytes += range.extent.length_bytes;
  return bytes;
}

std::vector<ChunkVersion*> LiveRanges::Foldable(uint64_t max_bytes) {
  std::vector<ChunkVersion*> foldable;
  for (auto& [version, chunk] : versions_) {
    const Extents& payload = chunk.entry.extents.payload;
    if (chunk.entry.extents.deltas.empty() || payload.length_bytes() > max_bytes) continue;
    const bool is_alone = std::ranges::all_of(
        payload, [&](const Extent& extent) { return FindUsedBy(version, extent) != nullptr; });
    if (is_alone) foldable.push_back(&chunk);
  }
  std::ranges::sort(foldable, {}, &ChunkVersion::order);
  return foldable;
}

std::vector<ChunkVersion*> LiveRanges::Compressible(uint64_t max_bytes) {
  constexpr uint64_t kMinBytes = 4096;
  std::vector<ChunkVersion*> compressible;
  for (auto& [id, version] : versions_) {
    const ChunkExtents& extents = version.entry.extents;
    const Extent& only = extents.payload.front();
    if (!extents.deltas.empty() || only.length_bytes < kMinBytes || only.length_bytes > max_bytes) {
      continue;
    }
    const LiveRange* const range = FindUsedBy(id, only);
    if (range != nullptr && range->extent == only) compressible.push_back(&version);
  }
  std::ranges::sort(compressible, {}, &ChunkVersion::order);
  return compressible;
}

void LiveRanges::Replace(const ChunkVersion& chunk) {
  const VersionId id = IdOf(chunk.entry.extents);
  chunk.entry.extents.ForEach([&](const Extent& extent) {
    const LiveRange* const range = FindUsedBy(id, extent);
    if (range != nullptr) {
      ranges_.at(extent.segment_id).at(range->extent.offset_bytes).is_replaced = true;
    }
  });
}

std::vector<LiveRange*> LiveRanges::InOrder() {
  std::vector<LiveRange*> all;
  for (auto& [segment, ranges] : ranges_) {
    for (auto& [offset, range] : ranges) {
      if (!range.is_replaced) all.push_back(&range);
    }
  }
  std::ranges::sort(all, {}, [](const LiveRange* range) {
    return std::tuple(range->order, range->extent.segment_id, range->extent.offset_bytes);
  });
  return all;
}

const LiveRange* LiveRanges::Find(const Extent& extent) const {
  const auto ranges = ranges_.find(extent.segment_id);
  if (ranges == ranges_.end()) return nullptr;
  const auto after = ranges->second.upper_bound(extent.offset_bytes);
  if (after == ranges->second.begin()) return nullptr;
  const LiveRange& range = std::prev(after)->second;
  return EndOf(extent) <= EndOf(range.extent) ? &range : nullptr;
}

/// Returns the range if nothing but this version uses it.
const LiveRange* LiveRanges::FindUsedBy(const VersionId& version, const Extent& extent) const {
  const LiveRange* const range = Find(extent);
  return range != nullptr && range->only_user == version ? range : nullptr;
}

/// Appends where the extent is now: itself, if it was not moved.
void LiveRanges::AppendMoved(const Extent& extent, std::vector<Extent>& moved) const {
  const LiveRange* const range = Find(extent);
  if (range == nullptr || range->moved_to.empty()) {
    moved.push_back(extent);
    return;
  }
  uint64_t skipped = extent.offset_bytes - range->extent.offset_bytes;
  uint64_t remaining = extent.length_bytes;
  for (const Extent& piece : range->moved_to) {
    if (skipped >= piece.length_bytes) {
      skipped -= piece.length_bytes;
      continue;
    }
    const Extent rest = skipped > 0 ? piece.From(skipped) : piece;
    skipped = 0;
    moved.push_back(rest.First(std::min(remaining, rest.length_bytes)));
    remaining -= moved.back().length_bytes;
    if (remaining == 0) return;
  }
}

std::optional<ChunkExtents> LiveRanges::Moved(const ChunkExtents& extents) const {
  const auto found = versions_.find(IdOf(extents));
  if (found != versions_.end() && !found->second.moved_to.empty() &&
      found->second.entry.extents == extents) {
    const ChunkVersion& version = found->second;
    if (!version.is_compressed) return ChunkExtents(Extents(version.moved_to));
    ChunkExtents compressed{Extent::Zeros(extents.payload.length_bytes())};
    compressed.deltas = version.moved_to;
    return compressed;
  }
  bool is_moved = false;
  extents.ForEach([&](const Extent& extent) { is_moved |= Contains(extent.segment_id); });
  if (!is_moved) return std::nullopt;
  std::vector<Extent> payload;
  for (const Extent& extent : extents.payload) AppendMoved(extent, payload);
  ChunkExtents moved{Extents(payload)};
  for (const Extent& extent : extents.deltas) AppendMoved(extent, moved.deltas);
  return moved;
}

}  // namespace cairn::kv::internal
