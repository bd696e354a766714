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
  return a.page_bits == b.page_bits && skipped % a.page_bytes() == 0 &&
         b.page_digests_offset_bytes ==
             a.page_digests_offset_bytes + 8 * (skipped / a.page_bytes());
}

}  // namespace

LiveRanges::LiveRanges(std::set<uint64_t> segments, bool with_raw)
    : segments_(std::move(segments)), with_raw_(with_raw) {}

LiveRanges::LastPlace LiveRanges::LastPlaceOf(const ChunkExtents& extents) {
  const Extent& last = extents.deltas.empty() ? extents.payload.back() : extents.deltas.back();
  return {last.segment_id, last.offset_bytes};
}

template <typename Versions>
auto* LiveRanges::FindIn(Versions& versions, const ChunkExtents& extents) {
  const auto [begin, end] = versions.equal_range(LastPlaceOf(extents));
  const auto found =
      std::find_if(begin, end, [&](const auto& at) { return at.second.entry.extents == extents; });
  return found == end ? nullptr : &found->second;
}

ChunkVersion& LiveRanges::AddVersion(std::string_view key, const ChunkEntry& entry) {
  if (ChunkVersion* const known = FindIn(versions_, entry.extents)) return *known;
  return versions_
      .emplace(LastPlaceOf(entry.extents),
               ChunkVersion{
                   .key = std::string(key), .entry = entry, .order = next_order_++, .moved_to = {}})
      ->second;
}

void LiveRanges::AddSegmentsOf(const ChunkExtents& extents) {
  extents.ForEach([&](const Extent& extent) { segments_.insert(extent.segment_id); });
}

Result<ChunkVersion*> LiveRanges::Add(std::string_view key, const ChunkEntry& entry) {
  ChunkVersion* user = nullptr;
  if (!entry.extents.deltas.empty() || with_raw_) user = &AddVersion(key, entry);
  const uint64_t order = next_order_++;
  const auto add = [&](const Extent& extent, bool is_delta, bool is_aligned) -> Result<void> {
    if (!Contains(extent.segment_id)) return {};
    return AddExtent({.extent = extent,
                      .order = order,
                      .key = std::string(key),
                      .is_delta = is_delta,
                      .is_aligned = is_aligned,
                      .only_user = user,
                      .is_replaced = false,
                      .moved_to = {}});
  };
  const bool has_several = entry.extents.payload.size() > 1;
  for (const Extent& extent : entry.extents.payload) {
    CAIRN_TRY(add(extent, /*is_delta=*/false, has_several || extent.length_bytes >= kPageBytes));
  }
  for (const Extent& extent : entry.extents.deltas) {
    CAIRN_TRY(add(extent, /*is_delta=*/true, /*is_aligned=*/false));
  }
  return user;
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
    if (other.only_user != added.only_user) other.only_user = nullptr;
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

template <typename Predicate>
std::vector<ChunkVersion*> LiveRanges::VersionsWith(const Predicate& predicate) {
  std::vector<ChunkVersion*> found;
  for (auto& [place, version] : versions_) {
    if (predicate(version)) found.push_back(&version);
  }
  std::ranges::sort(found, {}, &ChunkVersion::order);
  return found;
}

std::vector<ChunkVersion*> LiveRanges::Foldable(uint64_t max_bytes) {
  return VersionsWith([&](const ChunkVersion& version) {
    const Extents& payload = version.entry.extents.payload;
    if (version.entry.extents.deltas.empty() || payload.length_bytes() > max_bytes) return false;
    return std::ranges::all_of(
        payload, [&](const Extent& extent) { return FindUsedBy(version, extent) != nullptr; });
  });
}

std::vector<ChunkVersion*> LiveRanges::Compressible(uint64_t max_bytes) {
  constexpr uint64_t kMinBytes = 4096;
  return VersionsWith([&](const ChunkVersion& version) {
    const ChunkExtents& extents = version.entry.extents;
    const Extent& only = extents.payload.front();
    if (!extents.deltas.empty() || extents.payload.size() > 1 || only.length_bytes < kMinBytes ||
        only.length_bytes > max_bytes || only.page_bits != kPageBits) {
      return false;
    }
    const LiveRange* const range = FindUsedBy(version, only);
    return range != nullptr && range->extent == only;
  });
}

void LiveRanges::Replace(const ChunkVersion& chunk) {
  chunk.entry.extents.ForEach([&](const Extent& extent) {
    const LiveRange* const range = FindUsedBy(chunk, extent);
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
const LiveRange* LiveRanges::FindUsedBy(const ChunkVersion& version, const Extent& extent) const {
  const LiveRange* const range = Find(extent);
  return range != nullptr && range->only_user == &version ? range : nullptr;
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
  const ChunkVersion* const version = FindIn(versions_, extents);
  if (version != nullptr && !version->moved_to.empty()) {
    if (!version->is_compressed) return ChunkExtents(Extents(version->moved_to));
    ChunkExtents compressed{Extent::Zeros(extents.payload.length_bytes())};
    compressed.deltas = version->moved_to;
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
