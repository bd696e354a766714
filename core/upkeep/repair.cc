// 1. A verification finds the damaged segments, and CheckPages their damaged pages.
// 2. A good copy of each of these pages is looked for: a page of a chunk with the same key by its
//    digest, or the complete chunk by its digest.
// 3. What is stored in the segments is moved, with the good copies (kv/rewrite_chunks.h). A chunk
//    with a page that has no copy is written in full if its bytes are somewhere.

#include "core/upkeep/repair.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/internal/progress_meter.h"
#include "core/step/internal/delta_chain.h"
#include "core/step/internal/stored_page_digests.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/read/snapshot.h"
#include "kv/rewrite_chunks.h"

namespace cairn::core {
namespace {

using DigestKey = std::pair<uint64_t, uint64_t>;
DigestKey KeyOf(const kv::Digest& digest) { return {digest.hi, digest.lo}; }

/// A chunk, or a page of one, whose bytes match its digest.
struct Copy {
  std::shared_ptr<const kv::Snapshot> source;
  kv::StoredChunk chunk;
};

struct Version {
  kv::StoredChunk chunk;
  uint64_t step = 0;        // the first that has it
  bool is_possible = true;  // its extents are within their segments
  bool is_damaged = false;  // its bytes do not match its digest
  bool has_bad_pages = false;
  std::shared_ptr<const Copy> copy;  // of its bytes
};

/// The place of a page in a segment: the positions of its first byte and of its digest.
struct Place {
  uint64_t segment_id = 0;
  uint64_t offset_bytes = 0;
  uint64_t digest_offset_bytes = 0;
  auto operator<=>(const Place&) const = default;
};

/// A page that does not match the digest next to it, or cannot be read.
struct BadPage {
  uint64_t length_bytes = 0;
  std::optional<uint64_t> digest;  // next to it; empty: cannot be read
  std::shared_ptr<const Copy> copy;
  uint64_t begin_bytes = 0;  // of the page, in the copy
};
using BadPages = std::map<Place, BadPage>;

/// Calls `visit(begin_bytes, page)` with the bad pages of an extent, in order; `begin_bytes` is the
/// position of the page in it.
template <typename Visit>
void ForEachBadPage(BadPages& pages, const kv::Extent& extent, const Visit& visit) {
  const uint64_t end = extent.offset_bytes + extent.length_bytes;
  for (auto at = pages.lower_bound({extent.segment_id, extent.offset_bytes, 0}); at != pages.end();
       ++at) {
    const Place& place = at->first;
    if (place.segment_id != extent.segment_id || place.offset_bytes >= end) return;
    const uint64_t begin_bytes = place.offset_bytes - extent.offset_bytes;
    const uint64_t page = begin_bytes / extent.page_bytes();
    if (place.digest_offset_bytes == extent.page_digests_offset_bytes + 8 * page) {
      visit(begin_bytes, at->second);
    }
  }
}

/// Extends `extent` to the end of `next`, which does not begin before it, and returns true, if they
/// overlap.
bool Join(kv::Extent& extent, const kv::Extent& next) {
  const uint64_t skipped_bytes = next.offset_bytes - extent.offset_bytes;
  if (extent.segment_id != next.segment_id || extent.page_bits != next.page_bits ||
      skipped_bytes >= extent.length_bytes || skipped_bytes % extent.page_bytes() != 0 ||
      extent.From(skipped_bytes).page_digests_offset_bytes != next.page_digests_offset_bytes) {
    return false;
  }
  extent.length_bytes = std::max(extent.length_bytes, skipped_bytes + next.length_bytes);
  return true;
}

/// Returns page `index` of an extent.
kv::Extent PageOf(const kv::Extent& extent, uint64_t index) {
  const kv::Extent rest = extent.From(index * extent.page_bytes());
  return rest.First(std::min(rest.length_bytes, extent.page_bytes()));
}

/// Reads a chunk; nothing if its bytes do not match its digest.
std::optional<std::vector<std::byte>> ReadGood(const std::shared_ptr<const kv::Snapshot>& snapshot,
                                               const kv::StoredChunk& chunk) {
  if (!internal::HasBytes(*snapshot, chunk.entry.extents.payload)) return std::nullopt;
  std::vector<std::byte> bytes(chunk.entry.extents.payload.length_bytes());
  if (!internal::ReadStoredChunk(snapshot, chunk.key, chunk.entry.extents, bytes)) {
    return std::nullopt;
  }
  const uint64_t page_bytes = chunk.entry.extents.payload.page_bytes();
  if (kv::PayloadDigest(bytes, page_bytes) != chunk.entry.digest) return std::nullopt;
  return bytes;
}

/// Calls `visit` with the chunks of all steps whose records can be read, the newest step first.
/// Returns the errors of the others.
std::vector<Error> ForEachStoredChunk(
    const kv::Snapshot& snapshot,
    const std::function<void(uint64_t step, std::string_view key, kv::ChunkEntry)>& visit) {
  std::vector<Error> errors;
  const auto numbers = snapshot.step_numbers();
  for (auto step = numbers.rbegin(); step != numbers.rend(); ++step) {
    const auto info = snapshot.FindStep(*step);
    if (!info) {
      errors.push_back(info.error());
      continue;
    }
    const auto scanned =
        snapshot.Scan(kv::Column::kChunks, *info, "",
                      [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                        const auto decoded = internal::DecodeChunk(key, record);
                        if (decoded) visit(*step, key, decoded->info.entry());
                        return true;
                      });
    if (!scanned) errors.push_back(scanned.error());
  }
  return errors;
}

Result<void> ReadDigests(const kv::Snapshot& snapshot, const kv::Extent& extent,
                         std::span<uint64_t> digests) {
  const kv::ReadRange range{.segment_id = extent.segment_id,
                            .offset_bytes = extent.page_digests_offset_bytes,
                            .target = std::as_writable_bytes(digests)};
  CAIRN_TRY(snapshot.Read({&range, 1}, 1, [](size_t, auto) { return Result<void>(); }));
  return {};
}

/// Reads one page; nothing if its bytes do not match the digest.
std::optional<std::vector<std::byte>> ReadGoodPage(const kv::Snapshot& snapshot,
                                                   const kv::Extent& page, uint64_t digest) {
  std::vector<std::byte> bytes(page.length_bytes);
  const kv::ReadRange range{
      .segment_id = page.segment_id, .offset_bytes = page.offset_bytes, .target = bytes};
  if (!snapshot.Read({&range, 1}, 1, [](size_t, auto) { return Result<void>(); })) {
    return std::nullopt;
  }
  if (kv::PageDigest(bytes) != digest) return std::nullopt;
  return bytes;
}

using Segments = std::map<uint64_t, kv::SegmentInfo>;  // by id

Result<Segments> SegmentsOf(const kv::Snapshot& snapshot) {
  CAIRN_TRY_ASSIGN(auto segments, snapshot.Segments());
  Segments by_id;
  for (kv::SegmentInfo& segment : segments) by_id[segment.segment_id] = std::move(segment);
  return by_id;
}

/// Returns whether the segments may have the extents; a forged record may name any.
bool IsPossible(const kv::Snapshot& snapshot, const Segments& segments,
                const kv::ChunkExtents& extents) {
  bool is_possible = internal::HasBytes(snapshot, extents.payload);
  extents.ForEach([&](const kv::Extent& extent) {
    const auto found = segments.find(extent.segment_id);
    is_possible &= found != segments.end() && extent.offset_bytes <= found->second.file_bytes &&
                   extent.length_bytes <= found->second.file_bytes - extent.offset_bytes;
  });
  return is_possible && std::ranges::all_of(extents.deltas, [&](const kv::Extent& delta) {
           return internal::HasBytes(snapshot, kv::Extents(delta));
         });
}

class RepairRun {
 public:
  RepairRun(CheckpointStore& store, const RepairOptions& options)
      : store_(store), options_(options) {}

  Result<RepairReport> Run(std::span<const std::unique_ptr<CheckpointStore>> sources) {
    CAIRN_TRY(FindDamage());
    if (damages_.empty()) return report_;
    CAIRN_TRY_ASSIGN(snapshot_, store_.kv().Latest());
    CAIRN_TRY_ASSIGN(all_segments_, SegmentsOf(*snapshot_));
    FindDamagedSegments();
    do {
      CollectVersions();
      CheckPages();
    } while (AddSegmentsOfBadPages());
    CheckVersions();
    std::vector<std::shared_ptr<const kv::Snapshot>> snapshots{snapshot_};
    for (const auto& source : sources) {
      CAIRN_TRY_ASSIGN(snapshots.emplace_back(), source->kv().Latest());
    }
    for (const auto& snapshot : snapshots) FindPages(snapshot);
    // What is found of a version without deltas is found of those with deltas that begin with it.
    for (const bool with_deltas : {false, true}) {
      for (const auto& snapshot : snapshots) FindChunks(snapshot, with_deltas);
    }
    CAIRN_TRY(Write());
    ReportRemaining();
    return report_;
  }

 private:
  Result<void> FindDamage() {
    CAIRN_TRY(store_.Verify(
        {}, [&](const kv::Damage& damage) { damages_.push_back(damage.error); }, options_.progress,
        options_.record_progress));
    // What a newer Cairn has written is not damaged, and is unknown here.
    const auto newer = std::ranges::find(damages_, ErrorCode::kUnimplemented, &Error::code);
    if (newer != damages_.end()) return Fail(*newer);
    report_.found = damages_.size();
    return {};
  }

  bool IsIn(const Error& error, const kv::SegmentInfo& segment) const {
    return error.file.ends_with("/" + segment.name);
  }

  void FindDamagedSegments() {
    for (const auto& [id, segment] : all_segments_) {
      if (std::ranges::any_of(damages_, [&](const Error& e) { return IsIn(e, segment); })) {
        segments_[id] = segment;
      }
    }
  }

  /// Collects what has extents in damaged segments.
  void CollectVersions() {
    versions_.clear();
    damages_.resize(report_.found);
    std::set<std::vector<std::array<uint64_t, 3>>> known;  // locations
    const auto errors = ForEachStoredChunk(
        *snapshot_, [&](uint64_t step, std::string_view key, kv::ChunkEntry entry) {
          bool is_in_damaged = false;
          std::vector<std::array<uint64_t, 3>> locations;
          entry.extents.ForEach([&](const kv::Extent& extent) {
            is_in_damaged |= segments_.contains(extent.segment_id);
            locations.push_back({extent.segment_id, extent.offset_bytes, extent.length_bytes});
          });
          if (!is_in_damaged || !known.insert(std::move(locations)).second) return;
          const bool is_possible = IsPossible(*snapshot_, all_segments_, entry.extents);
          versions_.push_back({.chunk = {std::string(key), std::move(entry)},
                               .step = step,
                               .is_possible = is_possible,
                               .copy = nullptr});
        });
    damages_.insert(damages_.end(), errors.begin(), errors.end());
  }

  /// Adds the segments of the bad pages to the damaged ones, and returns whether there were others.
  /// Of a chunk with several damaged extents, the verification names one.
  bool AddSegmentsOfBadPages() {
    bool has_added = false;
    for (const auto& [place, page] : bad_pages_) {
      if (segments_.contains(place.segment_id)) continue;
      segments_[place.segment_id] = all_segments_.at(place.segment_id);
      has_added = true;
    }
    return has_added;
  }

  /// Calls `visit` with each extent of the version.
  template <typename Visit>
  static void ForEachExtent(const Version& version, const Visit& visit) {
    if (version.is_possible) version.chunk.entry.extents.ForEach(visit);
  }

  /// Compares the pages of the versions with the digests next to them.
  void CheckPages() {
    std::vector<kv::Extent> extents;
    for (const Version& version : versions_) {
      ForEachExtent(version, [&](const kv::Extent& extent) { extents.push_back(extent); });
    }
    std::ranges::sort(extents, {}, [](const kv::Extent& extent) {
      return std::tuple(extent.segment_id, extent.offset_bytes, extent.length_bytes);
    });
    std::optional<kv::Extent> joined;  // versions share pages
    for (const kv::Extent& extent : extents) {
      if (joined && Join(*joined, extent)) continue;
      if (joined) CheckExtent(*joined);
      joined = extent;
    }
    if (joined) CheckExtent(*joined);
  }

  void CheckExtent(const kv::Extent& extent) {
    constexpr uint64_t kPieceBytes = 8 << 20;
    std::vector<std::byte> bytes;
    std::vector<uint64_t> stored, computed;
    for (uint64_t begin = 0; begin < extent.length_bytes; begin += kPieceBytes) {
      const kv::Extent rest = extent.From(begin);
      const kv::Extent piece = rest.First(std::min(rest.length_bytes, kPieceBytes));
      bytes.resize(piece.length_bytes);
      stored.resize(piece.page_count());
      computed.clear();
      if (internal::ReadWithPageDigests(*snapshot_, piece, bytes, stored)) {
        kv::AppendPageDigests(bytes, computed, piece.page_bytes());
        for (size_t i = 0; i < stored.size(); ++i) {
          if (computed[i] != stored[i]) AddBadPage(PageOf(piece, i), stored[i]);
        }
      } else {
        CheckUnreadable(piece);
      }
    }
  }

  /// Checks the pages of an extent that cannot be read as a whole.
  void CheckUnreadable(const kv::Extent& extent) {
    std::vector<uint64_t> digests(extent.page_count());
    const bool has_digests = ReadDigests(*snapshot_, extent, digests).has_value();
    for (size_t i = 0; i < digests.size(); ++i) {
      const kv::Extent page = PageOf(extent, i);
      if (!has_digests) {
        AddBadPage(page, std::nullopt);
      } else if (!ReadGoodPage(*snapshot_, page, digests[i])) {
        AddBadPage(page, digests[i]);
      }
    }
  }

  void AddBadPage(const kv::Extent& page, std::optional<uint64_t> digest) {
    bad_pages_[{page.segment_id, page.offset_bytes, page.page_digests_offset_bytes}] = {
        .length_bytes = page.length_bytes, .digest = digest, .copy = nullptr};
  }

  /// Finds out which versions are damaged. One whose damaged pages a delta replaces is not.
  void CheckVersions() {
    for (Version& version : versions_) {
      ForEachExtent(version, [&](const kv::Extent& extent) {
        ForEachBadPage(bad_pages_, extent, [&](uint64_t, auto&) { version.has_bad_pages = true; });
      });
      if (!version.has_bad_pages && version.is_possible) {
        ChunkInfo info;
        info.extents = version.chunk.entry.extents.payload;
        info.deltas = version.chunk.entry.extents.deltas;
        info.digest = version.chunk.entry.digest;
        const ChunkInfo* const chunk = &info;
        if (!internal::ReadStoredPageDigests(*snapshot_, {&chunk, 1}).front().empty()) continue;
      }
      version.is_damaged = !ReadGood(snapshot_, version.chunk);
      if (version.is_damaged) {
        ++report_.damaged_chunks;
      } else {  // its page digests are damaged
        UseCopy(version, std::make_shared<const Copy>(snapshot_, version.chunk));
      }
    }
  }

  /// Looks for pages with the digests of bad pages in the chunks with the same keys.
  void FindPages(const std::shared_ptr<const kv::Snapshot>& snapshot) {
    std::map<std::string, std::multimap<uint64_t, BadPage*>, std::less<>> wanted;
    for (const Version& version : versions_) {
      ForEachExtent(version, [&](const kv::Extent& extent) {
        ForEachBadPage(bad_pages_, extent, [&](uint64_t, BadPage& page) {
          if (page.digest && page.copy == nullptr) {
            wanted[version.chunk.key].emplace(*page.digest, &page);
          }
        });
      });
    }
    if (wanted.empty()) return;
    const auto segments = SegmentsOf(*snapshot);
    if (!segments) return;
    std::map<std::pair<std::string, Place>, uint64_t> visited;  // length, in bytes
    ForEachStoredChunk(*snapshot, [&](uint64_t, std::string_view key, kv::ChunkEntry entry) {
      const auto found = wanted.find(key);
      if (found == wanted.end() || !IsPossible(*snapshot, *segments, entry.extents)) return;
      entry.extents.ForEach([&](const kv::Extent& extent) {
        const Place place{extent.segment_id, extent.offset_bytes, extent.page_digests_offset_bytes};
        uint64_t& length_bytes = visited[{std::string(key), place}];
        if (length_bytes >= extent.length_bytes) return;
        length_bytes = extent.length_bytes;
        std::vector<uint64_t> digests(extent.page_count());
        if (!ReadDigests(*snapshot, extent, digests)) return;
        for (size_t i = 0; i < digests.size(); ++i) {
          const auto [begin, end] = found->second.equal_range(digests[i]);
          if (begin == end) continue;
          const kv::Extent page = PageOf(extent, i);
          const auto is_wanted = [&](const auto& bad) {
            return bad.second->copy == nullptr && bad.second->length_bytes == page.length_bytes;
          };
          if (std::none_of(begin, end, is_wanted)) continue;
          const auto bytes = ReadGoodPage(*snapshot, page, digests[i]);
          if (!bytes) continue;
          kv::ChunkEntry entry_of_page;
          entry_of_page.extents = page;
          entry_of_page.digest = kv::PayloadDigest(*bytes, page.page_bytes());
          const auto copy = std::make_shared<const Copy>(
              snapshot, kv::StoredChunk{std::string(key), std::move(entry_of_page)});
          for (auto bad = begin; bad != end; ++bad) {
            if (is_wanted(*bad)) bad->second->copy = copy;
          }
        }
      });
    });
  }

  /// Looks for copies of the damaged versions with a page that has none yet.
  void FindChunks(const std::shared_ptr<const kv::Snapshot>& snapshot, bool with_deltas) {
    std::map<DigestKey, std::vector<Version*>> wanted;
    for (Version& version : versions_) {
      if (version.copy == nullptr && NeedsCopy(version) &&
          version.chunk.entry.extents.deltas.empty() != with_deltas) {
        wanted[KeyOf(version.chunk.entry.digest)].push_back(&version);
      }
    }
    if (wanted.empty()) return;
    // A source may be damaged, too; what can be read of it is used.
    ForEachStoredChunk(*snapshot, [&](uint64_t, std::string_view key, kv::ChunkEntry entry) {
      const auto found = wanted.find(KeyOf(entry.digest));
      if (found == wanted.end()) return;
      const auto copy = std::make_shared<const Copy>(
          snapshot, kv::StoredChunk{std::string(key), std::move(entry)});
      // A forged record may have the digest of another chunk.
      const auto is_alike = [&](const Version* version) {
        return version->chunk.entry.extents.payload.length_bytes() ==
               copy->chunk.entry.extents.payload.length_bytes();
      };
      std::vector<Version*>& versions = found->second;
      if (std::ranges::none_of(versions, is_alike) || !ReadGood(snapshot, copy->chunk)) return;
      for (Version* const version : versions) {
        if (is_alike(version)) UseCopy(*version, copy);
      }
      std::erase_if(versions, is_alike);
      if (versions.empty()) wanted.erase(found);
    });
  }

  void UseCopy(Version& version, const std::shared_ptr<const Copy>& copy) {
    version.copy = copy;
    if (!version.is_possible || !version.chunk.entry.extents.deltas.empty()) return;
    uint64_t extent_begin = 0;
    for (const kv::Extent& extent : version.chunk.entry.extents.payload) {
      ForEachBadPage(bad_pages_, extent, [&](uint64_t begin_bytes, BadPage& page) {
        if (page.copy != nullptr) return;
        page.copy = copy;
        page.begin_bytes = extent_begin + begin_bytes;
      });
      extent_begin += extent.length_bytes;
    }
  }

  /// Returns whether the version has its bytes only after it was replaced as a whole.
  bool NeedsCopy(const Version& version) {
    if (!version.has_bad_pages) return version.is_damaged;
    bool needs_copy = false;
    ForEachExtent(version, [&](const kv::Extent& extent) {
      ForEachBadPage(bad_pages_, extent,
                     [&](uint64_t, BadPage& page) { needs_copy |= page.copy == nullptr; });
    });
    return needs_copy;
  }

  Result<void> Write() {
    kv::PayloadReplacement replacement;
    for (const auto& [id, segment] : segments_) replacement.segments.insert(id);
    std::vector<const Copy*> copies;  // of what is rewritten
    for (Version& version : versions_) {
      const bool needs_copy = NeedsCopy(version);
      if (needs_copy && version.copy == nullptr) {
        remaining_.push_back(&version);
        continue;
      }
      ++(version.is_damaged ? report_.repaired_chunks : report_.moved_chunks);
      if (needs_copy) {
        replacement.rewritten.push_back(version.chunk);
        copies.push_back(version.copy.get());
      } else {
        replacement.moved.push_back(version.chunk);
      }
    }
    replacement.read = [this](const kv::Extent& pages, auto bytes, auto page_digests) {
      return ReadRepaired(pages, bytes, page_digests);
    };
    replacement.bytes_of = [&](size_t i) -> Result<std::vector<std::byte>> {
      CAIRN_TRY_ASSIGN(const std::span bytes, ReadCopy(*copies[i]));
      return std::vector(bytes.begin(), bytes.end());
    };
    replacement.dry_run = true;
    CAIRN_TRY_ASSIGN(const auto planned, kv::ReplacePayload(store_.kv(), replacement));
    report_.written_bytes = planned.written_bytes;
    if (options_.dry_run) return {};
    internal::ProgressMeter progress(options_.write_progress, planned.written_bytes);
    replacement.progress = [&](uint64_t bytes) { return progress.Add(bytes); };
    replacement.dry_run = false;
    CAIRN_TRY_ASSIGN(const auto replaced, kv::ReplacePayload(store_.kv(), replacement));
    report_.rewritten_steps = replaced.rewritten_steps;
    return {};
  }

  /// Reads pages of damaged segments, and the damaged ones from their copies.
  Result<void> ReadRepaired(const kv::Extent& extent, std::span<std::byte> bytes,
                            std::span<uint64_t> page_digests) {
    std::map<uint64_t, const BadPage*> bad;
    ForEachBadPage(bad_pages_, extent, [&](uint64_t begin_bytes, const BadPage& page) {
      bad[begin_bytes / extent.page_bytes()] = &page;
    });
    const bool is_read =
        internal::ReadWithPageDigests(*snapshot_, extent, bytes, page_digests).has_value();
    for (size_t i = 0; i < page_digests.size(); ++i) {
      const kv::Extent page = PageOf(extent, i);
      const auto target = bytes.subspan(i * extent.page_bytes(), page.length_bytes);
      const auto found = bad.find(i);
      if (found != bad.end()) {
        CAIRN_TRY_ASSIGN(const std::span copy, ReadCopy(*found->second->copy));
        std::ranges::copy(copy.subspan(found->second->begin_bytes, target.size()), target.begin());
        page_digests[i] = kv::PageDigest(target);
      } else if (!is_read) {
        CAIRN_TRY(internal::ReadWithPageDigests(*snapshot_, page, target, {&page_digests[i], 1}));
      }
    }
    return {};
  }

  /// Reads a copy again. Keeps the last one, since the pages of a chunk follow each other.
  Result<std::span<const std::byte>> ReadCopy(const Copy& copy) {
    if (last_copy_ == &copy) return last_bytes_;
    auto bytes = ReadGood(copy.source, copy.chunk);
    if (!bytes) {
      return Fail(Error{.code = ErrorCode::kDataLoss,
                        .message = "a copy of the chunk was damaged or deleted during the repair",
                        .key = copy.chunk.key});
    }
    last_copy_ = &copy;
    last_bytes_ = *std::move(bytes);
    return last_bytes_;
  }

  void ReportRemaining() {
    for (const Version* const version : remaining_) {
      Error error{.code = ErrorCode::kDataLoss,
                  .message = "a chunk is damaged, and no good copy of it was found",
                  .step = version->step};
      if (const auto parsed = kv::ParseKey(version->chunk.key)) error.key = parsed->fqn;
      report_.remaining.push_back(std::move(error));
    }
    for (const Error& damage : damages_) {
      const bool is_of_segment = std::ranges::any_of(
          segments_, [&](const auto& segment) { return IsIn(damage, segment.second); });
      if (!is_of_segment) report_.remaining.push_back(damage);
    }
  }

  CheckpointStore& store_;
  const RepairOptions& options_;
  std::shared_ptr<const kv::Snapshot> snapshot_;
  std::vector<Error> damages_;
  Segments all_segments_;
  Segments segments_;              // damaged ones
  std::vector<Version> versions_;  // all in damaged segments
  BadPages bad_pages_;
  std::vector<const Version*> remaining_;  // without a good copy
  const Copy* last_copy_ = nullptr;
  std::vector<std::byte> last_bytes_;
  RepairReport report_;
};

}  // namespace

Result<RepairReport> Repair(CheckpointStore& store,
                            std::span<const std::unique_ptr<CheckpointStore>> sources,
                            const RepairOptions& options) {
  return RepairRun(store, options).Run(sources);
}

}  // namespace cairn::core
