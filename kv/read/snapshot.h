#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The committed steps at one point in time: their records and payload.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/digest.h"
#include "kv/base/error.h"
#include "kv/base/key.h"
#include "kv/base/mapping.h"
#include "kv/base/read_range.h"
#include "kv/base/retention.h"
#include "kv/base/step_info.h"

namespace cairn::kv {

namespace internal {
class SnapshotState;
}  // namespace internal

/// A consistent, immutable view of the committed steps. It may outlive the Store. A step that is
/// deleted after the snapshot was taken remains readable for the grace period of the store; after
/// that, reads return kNotFound. Threads: all members are safe.
class Snapshot {
 public:
  ~Snapshot();
  /// The numbers of the steps, in ascending order. Reads nothing.
  const std::vector<uint64_t>& step_numbers() const;
  /// Returns the steps, in ascending order. kDataLoss, kUnavailable: the entries of older steps
  /// cannot be read. Cost: one read for about each 50 steps that are older than the last 64.
  Result<std::vector<StepInfo>> Steps() const;
  /// Returns the steps to delete (kv/base/retention.h), by default along the line of the latest,
  /// otherwise along that of `newest`, which then remains. kNotFound: LacksMetrics, unless `newest`
  /// is given, for which nothing is deleted then. kDataLoss, kUnavailable: see Steps.
  Result<std::vector<uint64_t>> StepsToDelete(const RetentionPolicy& policy,
                                              std::optional<uint64_t> newest = {}) const;
  /// Returns `step`, or the latest step (LatestOf in kv/base/retention.h). kNotFound: there is no
  /// such step; the message lists existing steps. kDataLoss, kUnavailable: see Steps.
  Result<StepInfo> FindStep(std::optional<uint64_t> step) const;

  /// The steps that have tags, by tag. Reads nothing.
  const Tags& tags() const;
  /// The policy that chooses the steps that saves keep (Store::SetRetention); if it keeps nothing,
  /// there is no such policy.
  const RetentionPolicy& retention() const;
  /// Whether saves compress what they write if they do not state otherwise
  /// (Store::SetCompression).
  bool compresses_saves() const;
  /// Returns the step that the tag names. kNotFound: there is no such tag; the message lists the
  /// existing tags.
  Result<uint64_t> FindTag(const std::string& name) const;

  // The functions below return kDataLoss if the store is damaged, kNotFound if the step was deleted
  // and its grace period has passed, and kUnavailable after an I/O error.

  /// Calls `callback` with the records of `step` whose key begins with `prefix`, in key order. The
  /// caller verifies the records.
  Result<void> Scan(Column column, const StepInfo& step, std::string_view prefix,
                    const ScanCallback& callback) const;
  /// Calls `callback` with the records of `step` whose key is not less than `first_key`, in key
  /// order. The caller verifies the records.
  Result<void> ScanFrom(Column column, const StepInfo& step, std::string_view first_key,
                        const ScanCallback& callback) const;
  /// Returns the bytes of a record (aligned for FlatBuffers), or nothing if there is none. The
  /// caller verifies the record.
  Result<std::optional<std::vector<std::byte>>> Get(Column column, const StepInfo& step,
                                                    std::string_view key) const;
  /// Returns the StructureRecord of a step, or nothing if it has none.
  Result<std::optional<std::vector<std::byte>>> GetStructure(const StepInfo& step) const;

  /// Returns the FQNs of the tensors, chunks and values that have a record in a table which only
  /// one of the two steps has, sorted; the records of all others are equal. Returns nothing if the
  /// steps share no table, so that all records may differ. Cost: reads the tables that they do not
  /// share.
  Result<std::optional<std::vector<std::string>>> FindUnsharedFqns(const StepInfo& a,
                                                                   const StepInfo& b) const;

  /// Calls `callback` with the records of `step` that may differ from the records of `base`, by
  /// key: the keys that have a record in a table which only one of the two steps has. The record is
  /// empty if `step` has none with this key. Returns false without a call if the steps share no
  /// table, or not the oldest ones, so that all records may differ. Cost: reads the tables that
  /// they do not share.
  Result<bool> ScanUnshared(Column column, const StepInfo& base, const StepInfo& step,
                            const ScanCallback& callback) const;

  /// kDataLoss: no step uses such a segment.
  Result<SegmentInfo> FindSegment(uint64_t segment_id) const;
  /// Returns the segments that a step uses, ascending by id.
  Result<std::vector<SegmentInfo>> SegmentsOf(const StepInfo& step) const;
  /// Returns the segments of SegmentsOf whose ids are not in `known`, and adds these ids to it.
  /// Cost: nothing is read if the step uses at most 16 segments, and `known` has them.
  Result<std::vector<SegmentInfo>> FurtherSegmentsOf(const StepInfo& step,
                                                     std::unordered_set<uint64_t>& known) const;
  /// Returns the segments that any step uses, ascending by id. kFailedPrecondition: the ids of two
  /// of them differ only after the first 64 bits. Cost: opens the tables of all steps.
  Result<std::vector<SegmentInfo>> Segments() const;
  /// Returns how many bytes of each segment each step uses. Cost: one read for each step that uses
  /// more than 16 segments.
  Result<std::vector<Usage>> SegmentUsage() const;

  /// Reads many ranges with deep queues and bounded memory (the pool of IoOptions), with O_DIRECT
  /// unless the page cache has the bytes. Neighbouring ranges become one request. `arrived(i,
  /// bytes)` is called once per range, when all bytes of ranges[i] have been read, so that the
  /// caller can verify them while they are in the cache; an error from it ends the read. No digest
  /// is checked here. At most `threads` threads, including the calling one, share the work; if
  /// there are several, they may call `arrived` concurrently. Returns the number of bytes that were
  /// read from storage. kDataLoss: a segment is missing, too short or unreadable. kNotFound: its
  /// step was deleted. Ranges of zeros (Extent::Zeros) are filled. Requires `lent_bytes <=
  /// ReadRange::kMaxLentBytes` in every range.
  Result<uint64_t> Read(std::span<const ReadRange> ranges, uint32_t threads,
                        const RangeCallback& arrived) const;

  /// Maps a complete segment. Its pages are read on access and shared with the page cache. Writes
  /// through the mapping are private to this process. Offsets are the same as in an Extent. In a
  /// storage without files, reads the complete segment into memory. kDataLoss: the segment is
  /// missing or too short. kNotFound: its step was deleted. kResourceExhausted: no memory.
  Result<std::shared_ptr<const Mapping>> Map(uint64_t segment_id) const;

  /// Checks everything that does not require knowledge of tensors: every byte of the root, of pages
  /// and of tables, every record of the kv columns, and the headers, footers, trailers and gaps of
  /// segments. Calls `damage` for each problem, and with kNotFound for what was deleted or
  /// compacted since the snapshot was taken, which is not damage. The digests of payload are
  /// checked by core/, which interprets chunk records.
  Result<void> VerifyFiles(const std::function<void(Damage)>& damage) const;

  /// For Store.
  explicit Snapshot(std::unique_ptr<const internal::SnapshotState> state);

 private:
  Result<std::shared_ptr<const Mapping>> MapObject(uint64_t segment_id,
                                                   const std::string& path) const;
  std::unique_ptr<const internal::SnapshotState> state_;
};

}  // namespace cairn::kv
