#pragma once
/// The parts behind StepWriter.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kv/internal/manifest.h"
#include "kv/internal/segment_writer.h"
#include "kv/internal/store_state.h"
#include "kv/store.h"

namespace cairn::kv {

class StepWriter::Impl {
 public:
  Impl(std::shared_ptr<internal::StoreState> state, uint64_t step,
       const Store::BeginOptions& options, std::string attempt);
  ~Impl();

  /// Makes pending/<attempt>/ and the manifest.
  Result<void> Start();

  Result<Appended> Append(uint64_t length_bytes, Placement placement, const PageSource& pages,
                          std::span<const uint64_t> leaves, std::span<const std::byte> memory);
  Result<void> AddRecord(Column column, std::string_view key, std::span<const std::byte> record);
  Result<void> AddChunk(std::string_view key, std::span<const uint64_t> sizes, const Extent& extent,
                        const Digest& digest, uint64_t since_step, bool reused);
  Result<void> SetStructure(std::span<const std::byte> record);
  Result<StepInfo> Commit(const Summary& summary);
  uint64_t written_bytes() const { return written_bytes_; }

 private:
  struct PendingChunk {
    std::string key;
    internal::ChunkEntry
        entry;  // leaves_offset_bytes holds the index of the first leaf until sealed
  };

  Result<void> StartSegment();
  Result<void> SealSegment();
  Result<void> AddReferencedSegments();
  Result<void> WriteStepRecord(const Summary& summary);
  Result<internal::StepEntry> CommitLocked();
  Result<void> MoveManifest(const internal::StepEntry& entry);
  Result<void> CheckUsable() const;

  const std::shared_ptr<internal::StoreState> state_;
  const uint64_t step_;
  const Store::BeginOptions options_;
  const std::string attempt_;
  const int64_t created_unix_ns_;

  std::unique_ptr<internal::ManifestWriter> manifest_;
  std::unique_ptr<internal::IoQueue> queue_;
  std::unique_ptr<internal::SegmentWriter> segment_;  // uses queue_
  uint64_t segment_id_ = 0;
  uint64_t segment_counter_ = 0;
  std::vector<PendingChunk> pending_chunks_;           // of segment_
  std::vector<internal::FooterEntry> footer_entries_;  // of segment_
  internal::FooterEntry last_tensor_;                  // goes into the footer with its first chunk
  bool last_tensor_used_ = false;
  std::vector<SegmentInfo> sealed_;
  std::set<uint64_t> referenced_;  // segments of earlier steps

  Digest structure_;
  bool has_structure_ = false;
  uint64_t chunk_count_ = 0;
  uint64_t reused_chunk_count_ = 0;
  uint64_t written_bytes_ = 0;
  bool failed_ = false;
  bool finished_ = false;
};

}  // namespace cairn::kv
