#include "core/inspect/internal/scrub_payload.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "core/base/internal/progress_meter.h"
#include "core/step/internal/delta_chain.h"
#include "core/step/internal/lookup.h"
#include "core/step/internal/stored_page_digests.h"
#include "kv/base/digest.h"
#include "kv/base/read_range.h"

namespace cairn::core::internal {
namespace {

std::pair<uint64_t, uint64_t> LocationOf(const kv::Extent& extent) {
  return {extent.segment_id, extent.offset_bytes};
}

// True if `extent` has its pages and their digests where `before` would have them if it were
// longer.
bool IsContinuationOf(const kv::Extent& before, const kv::Extent& extent) {
  const uint64_t bytes = extent.offset_bytes - before.offset_bytes;
  return extent.segment_id == before.segment_id && extent.page_bits == before.page_bits &&
         bytes % extent.page_bytes() == 0 &&
         extent.page_digests_offset_bytes ==
             before.page_digests_offset_bytes + 8 * (bytes / extent.page_bytes());
}

// Removes from `item` the pages that are read with `before`, which begins no later. Returns false
// if no page is left.
bool RemoveOverlap(const kv::Extent& before, ScrubItem& item) {
  const kv::Extent& extent = item.chunk.extents.front();
  const uint64_t read_end = before.offset_bytes + before.length_bytes;
  if (!IsContinuationOf(before, extent) || extent.offset_bytes >= read_end) return true;
  const uint64_t read = read_end - extent.offset_bytes;
  if (read >= extent.length_bytes) return false;
  item.first_page += read / extent.page_bytes();
  item.chunk.extents = extent.From(read / extent.page_bytes() * extent.page_bytes());
  return true;
}

}  // namespace

const ScrubItem* PayloadIndex::Add(uint64_t step, std::string_view fqn, const ChunkInfo& chunk) {
  const bool has_deltas = !chunk.deltas.empty();
  const ScrubItem::Part part = has_deltas                  ? ScrubItem::Part::kDeltas
                               : chunk.extents.size() == 1 ? ScrubItem::Part::kChunk
                                                           : ScrubItem::Part::kPageDigests;
  std::vector<Location> locations;
  chunk.stored().ForEach([&](const kv::Extent& e) { locations.push_back(LocationOf(e)); });
  const auto [at, _] =
      (has_deltas ? with_deltas_ : chunks_)
          .try_emplace(std::move(locations), ScrubItem{step, std::string(fqn), chunk, part});
  const ChunkInfo& known = at->second.chunk;
  const bool same = known.extents == chunk.extents && known.deltas == chunk.deltas &&
                    known.digest == chunk.digest;
  return same ? nullptr : &at->second;
}

std::vector<ScrubItem> PayloadIndex::Take() {
  std::vector<ScrubItem> to_read;  // chunks with one extent, and the extents of others
  std::vector<ScrubItem> others;
  for (auto& [locations, item] : std::exchange(chunks_, {})) {
    if (item.part == ScrubItem::Part::kChunk) {
      to_read.push_back(std::move(item));
      continue;
    }
    ScrubItem of_extent = item;
    of_extent.part = ScrubItem::Part::kExtent;
    for (const kv::Extent& extent : item.chunk.extents) {
      of_extent.chunk.extents = extent;
      to_read.push_back(of_extent);
      of_extent.first_page += extent.page_count();
    }
    others.push_back(std::move(item));
  }
  for (auto& [locations, item] : std::exchange(with_deltas_, {})) others.push_back(std::move(item));
  // At the same location, a complete chunk precedes an extent of another chunk.
  std::ranges::stable_sort(to_read, {}, [](const ScrubItem& item) {
    return std::pair(LocationOf(item.chunk.extents.front()), item.part);
  });
  std::vector<ScrubItem> items;
  kv::Extent farthest;  // the extent in the current segment that ends last
  for (ScrubItem& item : to_read) {
    const kv::Extent extent = item.chunk.extents.front();
    if (item.part == ScrubItem::Part::kExtent && !RemoveOverlap(farthest, item)) continue;
    items.push_back(std::move(item));
    const bool is_farther =
        extent.segment_id != farthest.segment_id ||
        extent.offset_bytes + extent.length_bytes > farthest.offset_bytes + farthest.length_bytes;
    if (is_farther) farthest = extent;
  }
  std::ranges::move(others, std::back_inserter(items));
  return items;
}

namespace {

// Decodes items with the part kDeltas. Reads the extents and leading deltas that adjacent items
// share once. Memory: one chunk and its deltas.
class DeltaScrubber {
 public:
  DeltaScrubber(const std::shared_ptr<const kv::Snapshot>& snapshot, std::string directory,
                const std::function<void(const kv::Damage&)>& damage)
      : view_{.snapshot = snapshot, .step = {}, .directory = std::move(directory)},
        damage_(damage) {}

  void Check(const ScrubItem& item) {
    const Result<void> decoded = Decode(item);
    if (decoded) {
      if (kv::PayloadDigest(bytes_) == item.chunk.digest) return;
      return Report(item, FindDamage(view_, item.fqn, item.chunk,
                                     fmt::format("chunk {} does not match its digest",
                                                 FormatNumbers(item.chunk.box.offsets))));
    }
    decoded_ = nullptr;
    Report(item, decoded.error());
  }

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  /// Sets bytes_ to the bytes of the item. Continues with the bytes of the item before it, if this
  /// one has only more deltas.
  Result<void> Decode(const ScrubItem& item) {
    const ChunkInfo& chunk = item.chunk;
    if (decoded_ == nullptr || !Continues(chunk, decoded_->chunk)) {
      decoded_ = nullptr;
      CAIRN_TRY(ReadExtents(item));
    }
    DeltaChain chain;
    DeltaRead read{.fqn = &item.fqn,
                   .chunk = &chunk,
                   .first = decoded_ == nullptr ? 0 : decoded_->chunk.deltas.size(),
                   .chain = &chain};
    CAIRN_TRY_ASSIGN(const uint64_t bytes, ReadDeltas(view_, {&read, 1}));
    bytes_read_ += bytes;
    CAIRN_TRY(CheckDeltas(item, read.first));
    const Result<void> applied = chain.ApplyAll(0, bytes_);
    if (!applied) {
      return Fail(
          FindDamage(view_, item.fqn, chunk,
                     fmt::format("chunk {} cannot be decoded: {}", FormatNumbers(chunk.box.offsets),
                                 applied.error().message)));
    }
    if (!chain.empty() && kv::RootDigest(chain.page_digests(), bytes_.size()) != chunk.digest) {
      return Fail(FindDamage(view_, item.fqn, chunk,
                             fmt::format("the page digests of chunk {} do not match its record",
                                         FormatNumbers(chunk.box.offsets))));
    }
    decoded_ = &item;
    return {};
  }

  static bool Continues(const ChunkInfo& chunk, const ChunkInfo& before) {
    return chunk.extents == before.extents && before.deltas.size() <= chunk.deltas.size() &&
           std::ranges::equal(std::span(chunk.deltas).first(before.deltas.size()), before.deltas);
  }

  /// Compares the deltas from `first` on with their page digests: some of their bits do not matter
  /// for the result.
  Result<void> CheckDeltas(const ScrubItem& item, size_t first) {
    for (const kv::Extent& delta : std::span(item.chunk.deltas).subspan(first)) {
      std::vector<std::byte> bytes(delta.length_bytes);
      std::vector<uint64_t> stored, computed;
      std::vector<kv::ReadRange> ranges{
          {.segment_id = delta.segment_id, .offset_bytes = delta.offset_bytes, .target = bytes}};
      AddPageDigestRanges(kv::Extents(delta), stored, ranges);
      CAIRN_TRY(view_.snapshot->Read(ranges, 1, [](size_t, auto) { return Result<void>(); }));
      kv::AppendPageDigests(bytes, computed, delta.page_bytes());
      if (computed != stored) return Fail(OtherPages(item));
    }
    return {};
  }

  Error OtherPages(const ScrubItem& item) {
    return FindDamage(view_, item.fqn, item.chunk,
                      fmt::format("bytes of chunk {} do not match their page digests",
                                  FormatNumbers(item.chunk.box.offsets)));
  }

  Result<void> ReadExtents(const ScrubItem& item) {
    const ChunkInfo& chunk = item.chunk;
    bytes_.resize(chunk.length_bytes());
    std::vector<kv::ReadRange> ranges;
    std::span<std::byte> rest(bytes_);
    for (const kv::Extent& extent : chunk.extents) {
      ranges.push_back({.segment_id = extent.segment_id,
                        .offset_bytes = extent.offset_bytes,
                        .target = rest.first(extent.length_bytes)});
      rest = rest.subspan(extent.length_bytes);
    }
    std::vector<uint64_t> stored, computed;
    if (!chunk.extents.front().is_zeros()) {  // deltas may replace wrong bytes
      AddPageDigestRanges(chunk.extents, stored, ranges);
    }
    CAIRN_TRY_ASSIGN(const uint64_t bytes,
                     view_.snapshot->Read(ranges, 1, [](size_t, auto) { return Result<void>(); }));
    bytes_read_ += bytes;
    if (stored.empty()) return {};
    kv::AppendPageDigests(bytes_, computed, chunk.extents.page_bytes());
    if (computed != stored) return Fail(OtherPages(item));
    return {};
  }

  void Report(const ScrubItem& item, Error error) {
    if (error.key.empty()) error.key = item.fqn;
    error.step = item.step;
    damage_({std::move(error)});
  }

  const StepView view_;  // without a step; for the names of segments
  const std::function<void(const kv::Damage&)>& damage_;
  const ScrubItem* decoded_ = nullptr;  // its bytes are in bytes_; null: none
  std::vector<std::byte> bytes_;
  uint64_t bytes_read_ = 0;
};

constexpr uint64_t kArenaBytes = 32 << 20;
constexpr uint64_t kMaxPartBytes = 8 << 20;
static_assert(kMaxPartBytes % kv::kMaxPageBytes == 0);
// A lost segment makes every chunk in it unreadable: only the first chunks are reported one by one.
constexpr uint64_t kNamedFailures = 4;

class Scrubber {
 public:
  Scrubber(const std::shared_ptr<const kv::Snapshot>& snapshot, std::string directory,
           const std::function<void(const kv::Damage&)>& damage, ProgressMeter& progress)
      : view_{.snapshot = snapshot, .step = {}, .directory = std::move(directory)},
        damage_(damage),
        progress_(progress),
        arena_(std::make_unique_for_overwrite<std::byte[]>(kArenaBytes)) {}

  Result<void> Add(const ScrubItem& item) {
    const uint64_t length = item.chunk.length_bytes();
    if (!HasBytes(*view_.snapshot, item.chunk.extents)) {
      Report(
          item,
          fmt::format("chunk {} cannot be read: its record names bytes that the segment may lack",
                      FormatNumbers(item.chunk.box.offsets)),
          item.chunk.extents.front().offset_bytes);
      return {};
    }
    auto job = std::make_shared<Job>(Job{.item = &item});
    CAIRN_TRY(AddPageDigests(job));
    if (item.part == ScrubItem::Part::kPageDigests) return {};
    job->computed.resize(item.chunk.extents.page_count());
    job->missing_bytes += length;
    const kv::Extent& extent = item.chunk.extents.front();
    for (uint64_t begin = 0; begin < length; begin += kMaxPartBytes) {
      const uint64_t count = std::min(kMaxPartBytes, length - begin);
      if (used_bytes_ + count > kArenaBytes) CAIRN_TRY(Flush());
      CAIRN_TRY(AddPart({.job = job,
                         .segment_id = extent.segment_id,
                         .offset_bytes = extent.offset_bytes + begin,
                         .begin_bytes = begin,
                         .memory = {arena_.get() + used_bytes_, count}}));
      used_bytes_ += count;
    }
    return {};
  }

  Result<void> Flush() {
    if (parts_.empty()) return {};
    std::vector<kv::ReadRange> ranges;
    for (const ReadPart& part : parts_) ranges.push_back(RangeOf(part));
    std::vector<bool> done(parts_.size());
    auto read = view_.snapshot->Read(ranges, 1, [&](size_t i, auto) {
      done[i] = true;
      return OnRead(parts_[i]);
    });
    if (cancelled_) return Fail(*cancelled_);
    // One bad range fails the batch, so the remaining ranges are read one by one.
    for (size_t i = 0; i < parts_.size() && !read; ++i) {
      if (done[i]) continue;
      const auto alone =
          view_.snapshot->Read({&ranges[i], 1}, 1, [&](size_t, auto) { return OnRead(parts_[i]); });
      if (cancelled_) return Fail(*cancelled_);
      if (!alone) CAIRN_TRY(OnUnreadable(parts_[i], alone.error()));
    }
    parts_.clear();
    used_bytes_ = 0;
    return {};
  }

  /// Reports how many more chunks of each segment could not be read.
  void Finish() {
    for (const auto& [segment_id, failures] : unreadable_) {
      const auto [count, code] = failures;
      if (count <= kNamedFailures) continue;
      damage_({Error{.code = code,
                     .message = fmt::format("{} more chunks of this segment cannot be read",
                                            count - kNamedFailures),
                     .file = SegmentPath(view_, segment_id)}});
    }
  }

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct Job {
    const ScrubItem* item = nullptr;
    std::vector<uint64_t> computed;
    std::vector<uint64_t> stored;
    uint64_t missing_bytes = 0;  // payload and stored digests that are not read yet
    bool failed = false;
  };
  struct ReadPart {
    std::shared_ptr<Job> job;  // shared by the parts of one item, which may be in two batches
    uint64_t segment_id = 0;
    uint64_t offset_bytes = 0;  // in the segment
    uint64_t begin_bytes = 0;   // in the chunk
    std::span<std::byte> memory;
    bool page_digests = false;  // true: stored page digests, not payload
  };

  static kv::ReadRange RangeOf(const ReadPart& part) {
    return {
        .segment_id = part.segment_id, .offset_bytes = part.offset_bytes, .target = part.memory};
  }

  Result<void> AddPageDigests(const std::shared_ptr<Job>& job) {
    std::vector<kv::ReadRange> ranges;
    AddPageDigestRanges(job->item->chunk.extents, job->stored, ranges);
    job->missing_bytes = 8 * job->stored.size();
    for (const kv::ReadRange& range : ranges) {
      CAIRN_TRY(AddPart({.job = job,
                         .segment_id = range.segment_id,
                         .offset_bytes = range.offset_bytes,
                         .memory = range.target,
                         .page_digests = true}));
    }
    return {};
  }

  Result<void> AddPart(ReadPart part) {
    constexpr size_t kMaxParts = 8192;
    if (parts_.size() >= kMaxParts) CAIRN_TRY(Flush());
    parts_.push_back(std::move(part));
    return {};
  }

  Result<void> OnRead(const ReadPart& part) {
    Job& job = *part.job;
    if (!part.page_digests) {
      const uint64_t page_bytes = job.item->chunk.extents.page_bytes();
      uint64_t page = part.begin_bytes / page_bytes;
      for (uint64_t at = 0; at < part.memory.size(); at += page_bytes) {
        job.computed[page++] = kv::PageDigest(
            part.memory.subspan(at, std::min<uint64_t>(page_bytes, part.memory.size() - at)));
      }
      bytes_read_ += part.memory.size();
    }
    job.missing_bytes -= part.memory.size();
    if (job.missing_bytes == 0) Check(job);
    return part.page_digests ? Result<void>() : Advance(part.memory.size());
  }

  Result<void> Advance(uint64_t bytes) {
    auto advanced = progress_.Add(bytes);
    if (!advanced) cancelled_ = advanced.error();
    return advanced;
  }

  void Check(const Job& job) {
    switch (job.item->part) {
      case ScrubItem::Part::kChunk:
        return CheckChunk(job);
      case ScrubItem::Part::kExtent:  // the page digests are checked by the kPageDigests item
        return ComparePages(job);
      case ScrubItem::Part::kPageDigests:
        CheckPageDigests(job);
        return;
      case ScrubItem::Part::kDeltas:  // DeltaScrubber checks these
        return;
    }
  }

  void CheckChunk(const Job& job) {
    const ChunkInfo& chunk = job.item->chunk;
    const bool stored_match = CheckPageDigests(job);
    if (kv::RootDigest(job.computed, chunk.length_bytes()) == chunk.digest) return;
    if (stored_match) return ComparePages(job);
    Report(*job.item,
           fmt::format("chunk {} does not match its digest", FormatNumbers(chunk.box.offsets)),
           chunk.extents.front().offset_bytes);
  }

  bool CheckPageDigests(const Job& job) {
    const ChunkInfo& chunk = job.item->chunk;
    if (kv::RootDigest(job.stored, chunk.length_bytes()) == chunk.digest) return true;
    Report(*job.item,
           fmt::format("the page digests of chunk {} do not match its record{}",
                       FormatNumbers(chunk.box.offsets),
                       chunk.extents.size() > 1 ? ", in one of its extents" : ""),
           chunk.extents.front().page_digests_offset_bytes);
    return false;
  }

  void ComparePages(const Job& job) {
    const ScrubItem& item = *job.item;
    for (size_t page = 0; page < job.computed.size(); ++page) {
      if (job.computed[page] == job.stored[page]) continue;
      Report(item,
             fmt::format("page {} of chunk {} does not match its digest; the bytes on disk have "
                         "changed",
                         item.first_page + page, FormatNumbers(item.chunk.box.offsets)),
             item.chunk.extents.front().offset_bytes + page * item.chunk.extents.page_bytes());
    }
  }

  Result<void> OnUnreadable(const ReadPart& part, Error error) {
    Job& job = *part.job;
    if (!job.failed && error.code == ErrorCode::kNotFound) {
      job.failed = true;
      damage_({std::move(error)});
    } else if (!job.failed) {
      job.failed = true;
      auto& [count, code] = unreadable_[part.segment_id];
      code = error.code;
      if (++count <= kNamedFailures) {
        if (error.key.empty()) error.key = job.item->fqn;
        if (!error.step) error.step = job.item->step;
        if (error.file.empty()) error.file = SegmentPath(view_, part.segment_id);
        if (!error.offset_bytes) error.offset_bytes = part.offset_bytes;
        damage_({std::move(error)});
      }
    }
    return part.page_digests ? Result<void>() : Advance(part.memory.size());
  }

  void Report(const ScrubItem& item, std::string message, uint64_t offset_bytes) {
    damage_({Error{.code = ErrorCode::kDataLoss,
                   .message = std::move(message),
                   .key = item.fqn,
                   .file = SegmentPath(view_, item.chunk.extents.front().segment_id),
                   .step = item.step,
                   .offset_bytes = offset_bytes}});
  }

  StepView view_;  // without a step; for the names of segments
  const std::function<void(const kv::Damage&)>& damage_;
  ProgressMeter& progress_;
  std::unique_ptr<std::byte[]> arena_;
  uint64_t used_bytes_ = 0;
  std::vector<ReadPart> parts_;
  /// By segment: the number of items, and the code of the last error.
  std::unordered_map<uint64_t, std::pair<uint64_t, ErrorCode>> unreadable_;
  std::optional<Error> cancelled_;
  uint64_t bytes_read_ = 0;
};

}  // namespace

Result<uint64_t> ScrubPayload(const std::shared_ptr<const kv::Snapshot>& snapshot,
                              const std::string& directory, std::span<const ScrubItem> items,
                              const std::function<void(const kv::Damage&)>& damage,
                              const Progress& progress) {
  uint64_t total = 0;
  for (const ScrubItem& item : items) {
    if (item.part != ScrubItem::Part::kPageDigests) total += item.chunk.length_bytes();
  }
  ProgressMeter meter(progress, total);
  Scrubber scrubber(snapshot, directory, damage, meter);
  const auto deltas = std::ranges::find(items, ScrubItem::Part::kDeltas, &ScrubItem::part);
  for (const ScrubItem& item : std::span(items.begin(), deltas)) CAIRN_TRY(scrubber.Add(item));
  CAIRN_TRY(scrubber.Flush());
  scrubber.Finish();
  DeltaScrubber delta_scrubber(snapshot, directory, damage);
  for (const ScrubItem& item : std::span(deltas, items.end())) {
    delta_scrubber.Check(item);
    CAIRN_TRY(meter.Add(item.chunk.length_bytes()));
  }
  return scrubber.bytes_read() + delta_scrubber.bytes_read();
}

}  // namespace cairn::core::internal
