#pragma once
/// The parts behind StepWriter.

#include <future>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kv/block_filler.h"
#include "kv/internal/commit/collected_records.h"
#include "kv/internal/commit/commit.h"
#include "kv/internal/commit/manifest.h"
#include "kv/internal/segment/segment_writer.h"
#include "kv/step_info.h"
#include "kv/step_writer.h"

namespace cairn::kv {

class StepWriter::Impl {
 public:
  Impl(std::shared_ptr<internal::StoreState> state, uint64_t step,
       const BeginOptions& options, std::string attempt);
  ~Impl();

  /// Makes pending/<attempt>/ and the manifest.
  Result<void> Start();

  Result<Appended> Append(uint64_t length_bytes, Placement placement, const PageSource& pages,
                          std::span<const uint64_t> page_digests, std::span<const std::byte> memory);
  Result<void> UseFiller(BlockFiller& filler, std::shared_ptr<BlockPool> blocks);
  Result<Appended> AppendFilled(uint64_t length_bytes, Placement placement,
                                std::span<const uint64_t> page_digests, const Fill& fill);
  Result<void> Drain();
  Result<void> AddRecord(Column column, std::string_view key, std::span<const std::byte> record);
  Result<std::vector<Extent>> AppendRunsFilled(uint64_t length_bytes, std::span<const PageRange> runs,
                                               std::span<const uint64_t> page_digests, const Fill& fill);
  Result<std::vector<Extent>> AppendRuns(uint64_t length_bytes, std::span<const PageRange> runs,
                                         const PageSource& pages, std::span<const uint64_t> page_digests,
                                         std::span<const std::byte> memory);
  Result<void> AddChunk(std::string_view key, std::span<const uint64_t> sizes,
                        const Extents& extents, const Digest& digest, uint64_t since_step,
                        bool reused);
  Result<void> AddShared(std::span<const SharedRecord> records);
  Result<void> Gather(const RankRecordCallback& on_record);
  Result<void> SetStructure(std::span<const std::byte> record);
  Result<void> Prepare(const Summary& summary);
  Result<StepInfo> AwaitDecision();
  Result<StepInfo> Commit(const Summary& summary);
  uint64_t written_bytes() const { return written_bytes_; }

 private:
  struct PendingChunk {
    std::string key;
    // Until the segment is sealed, page_digests_offset_bytes of its runs is the index of their first
    // leaf.
    internal::ChunkEntry entry;
  };

  /// Of the n-th segment that a rank writes in this attempt; no other attempt has it.
  uint64_t SegmentIdOf(uint32_t rank, uint64_t n) const;
  /// Runs `append` on a segment that has room for the payload.
  template <typename AppendTo>
  Result<Appended> AppendWith(uint64_t length_bytes, const AppendTo& append);
  /// The same for runs of its pages: `append(run, bytes)` for each.
  template <typename AppendRun>
  Result<std::vector<Extent>> AppendRunsWith(uint64_t length_bytes, std::span<const PageRange> runs,
                                             const AppendRun& append);
  /// A record for the manifest.
  Result<void> AddEntry(Column column, std::string_view key, std::span<const std::byte> value);
  Result<internal::StepEntry> IndexRecords(uint64_t generation,
                                           const std::vector<internal::StepEntry>& replaced,
                                           internal::Removal* removal);
  Result<void> StartSegment();
  /// Lets segment_ be one that takes so many bytes.
  Result<void> MakeRoom(uint64_t length_bytes);
  Extents WithPageDigestOffsets(const Extents& extents, uint64_t page_digests_offset_bytes) const;
  /// Seals the segment at hand, if any, and waits for those that are being sealed.
  Result<void> SealSegment();
  /// Gives the segment at hand its footer. With a filler, which may be far ahead of the disk, it is
  /// written on by a thread of its own, behind the segments before it.
  Result<void> CloseSegment();
  Result<void> AddSealed(Result<SegmentInfo> info);
  /// Takes over what has been sealed meanwhile; an error of it ends the attempt.
  Result<void> ReapClosed();
  Result<void> AddReferencedSegments();
  /// Where it is written; that of a joined rank gets its own name when it is durable.
  std::string ManifestPath() const;
  void RemoveOwnFiles();
  StepInfo InfoOf(const Summary& summary) const;
  Result<void> WriteStepRecord(const Summary& summary);
  Result<internal::StepEntry> CommitLocked();
  Result<void> MoveManifest(const internal::StepEntry& entry);
  Result<void> CheckUsable() const;
  bool has_ranks() const { return options_.world_size > 1; }

  // Several ranks (step_ranks.cc).
  Result<void> TakeManifest(uint32_t rank, const RankRecordCallback& on_record);
  Result<void> TakeRecord(uint32_t rank, Column column, std::string_view key,
                          std::span<const std::byte> value, const RankRecordCallback& on_record);
  Result<void> TakeShared(uint32_t rank, std::string_view digest,
                          const RankRecordCallback& on_record);
  Result<void> AwaitManifest(uint32_t rank) const;
  Error MissingRanks(uint32_t first) const;
  Result<void> FinishPart(const Summary& summary);
  Result<uint64_t> AwaitGeneration();
  Result<uint64_t> FindInIndex(std::string_view why) const;
  void RetireAttempts();

  const std::shared_ptr<internal::StoreState> state_;
  const uint64_t step_;
  const BeginOptions options_;
  const std::string attempt_;
  const int64_t created_unix_ns_;

  BlockFiller* filler_ = nullptr;      // null: none so far
  std::shared_ptr<BlockPool> blocks_;  // the store's, or shared with the filler's owner
  std::unique_ptr<internal::ManifestWriter> manifest_;
  std::unique_ptr<internal::IoQueue> queue_;
  std::unique_ptr<internal::SegmentWriter> segment_;  // uses queue_
  /// A segment that is being written to its end.
  struct Closing {
    std::unique_ptr<internal::IoQueue> queue;
    std::unique_ptr<internal::SegmentWriter> segment;  // uses the queue
    std::shared_future<Result<SegmentInfo>> sealed;    // shared with the thread behind it
  };
  std::list<Closing> closing_;
  uint64_t segment_id_ = 0;
  uint64_t segment_counter_ = 0;
  std::vector<PendingChunk> pending_chunks_;           // of segment_
  std::vector<internal::FooterEntry> footer_entries_;  // of segment_
  internal::FooterEntry last_tensor_;                  // goes into the footer with its first chunk
  bool last_tensor_used_ = false;
  std::vector<SegmentInfo> sealed_;
  std::set<uint64_t> referenced_;  // segments of earlier steps

  // Several ranks.
  std::set<std::string> known_shared_;    // digests of shared records that were added or seen
  std::set<uint64_t> segments_of_rank_;   // that the rank whose manifest is being taken wrote
  internal::CollectedRecords collected_;  // of all ranks, as they stand in the manifest
  internal::ManifestRef manifest_ref_;    // once it is finished
  bool gathered_ = false;
  StepInfo prepared_;

  Digest structure_;
  bool has_structure_ = false;
  uint64_t chunk_count_ = 0;
  uint64_t reused_chunk_count_ = 0;
  uint64_t written_bytes_ = 0;
  bool failed_ = false;
  bool finished_ = false;
};

}  // namespace cairn::kv
