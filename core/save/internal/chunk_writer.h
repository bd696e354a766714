#pragma once
/// Writes the chunks of a plan. Chunks that may be unchanged are digested and compared with the
/// base step; each chunk then becomes a reference to the bytes of the base, or is appended:
/// completely, only its changed pages, or as a delta (chunk_deltas.h).
///
/// Chunks are collected in windows of bounded size. While the candidates of one window are digested
/// on all cores, the window before it is written.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/codec/internal/delta_encoder.h"
#include "core/save/internal/chunk_deltas.h"
#include "core/save/internal/chunk_source.h"
#include "core/save/internal/device_save.h"
#include "core/save/internal/equal_chunks.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/save_options.h"
#include "core/step/internal/lookup.h"
#include "kv/io/worker_pool.h"
#include "kv/step_writer.h"

namespace cairn::core::internal {

/// The context of a ChunkWriter; all members must outlive it.
struct ChunkWriterContext {
  const SavePlan& plan;
  kv::StepWriter& writer;
  kv::WorkerPool& pool;  // for digests
  ProgressMeter& progress;
  const SaveOptions& options;
  uint64_t step = 0;
  const StepView* base = nullptr;  // null: no chunk has a base
  bool compress = false;           // chunks in host memory that are written completely
  SavedChunks* saved = nullptr;    // null: what was written is not recorded
  DeviceSave* device = nullptr;    // null: all tensors are in host memory
};

/// Adds the record of each tensor before its chunks, so that the footer of their segment contains
/// both. Threads: one.
class ChunkWriter {
 public:
  explicit ChunkWriter(const ChunkWriterContext& context);
  /// Waits for the digests that are being computed, if the save has failed.
  ~ChunkWriter();
  ChunkWriter(const ChunkWriter&) = delete;
  ChunkWriter& operator=(const ChunkWriter&) = delete;

  /// Adds a chunk. Requires that chunks are added in key order. kConflict: the bytes of a chunk
  /// were not staged because the base had them, and the base has been deleted or replaced since.
  /// Other errors: see kv::StepWriter, and kCancelled.
  Result<void> Add(PlannedChunk chunk);
  /// Writes the remaining windows, and the records of tensors without chunks. Call once.
  Result<void> Finish();

  uint64_t chunks() const { return chunks_; }
  uint64_t chunks_reused() const { return chunks_reused_; }

 private:
  struct Window {
    std::vector<PlannedChunk> chunks;
    uint64_t bytes = 0;
  };
  /// Where the bytes of a chunk are now.
  struct Stored {
    kv::ChunkExtents extents;
    kv::Digest digest;
  };

  /// Begins to digest the candidates of the window that is being filled, and writes the window that
  /// was digested before.
  Result<void> FlushWindow();
  /// Decides which pages of the changed chunks are written, or encodes deltas. Cost: one batch of
  /// reads of the base's page digests, and reads of the base's pages for deltas.
  void PlanChanges(Window& window);
  bool NeedsStatistics(const PlannedChunk& chunk) const;
  bool IsWorthCompressing(const PlannedChunk& chunk) const;
  /// Compresses the chunks of which no other form was planned.
  void CompressChunks(Window& window);
  /// True if the page digests of the chunk's base should be read.
  bool IsWorthProbing(const PlannedChunk& chunk);
  /// Adds the records of the tensors before `end` that are not added yet.
  Result<void> AddTensorRecords(size_t end);
  Result<void> Write(const PlannedChunk& chunk);
  /// Adds the record of a chunk, and reports its bytes as progress. `in_base`: the base has the
  /// extents.
  Result<void> AddRecord(const PlannedChunk& chunk, kv::ChunkEntry entry, bool in_base);
  Result<Stored> Append(const PlannedChunk& chunk);
  Result<Stored> AppendDelta(const PlannedChunk& chunk);

  const ChunkWriterContext context_;
  size_t next_tensor_ = 0;                       // the first whose record is not added yet
  std::vector<std::vector<std::byte>> scratch_;  // one page per worker
  Window filling_;
  Window digested_;                                    // or is being digested
  std::vector<PlannedChunk*> scanned_;                 // in digested_; their bytes are being read
  std::vector<std::span<PlannedChunk*>> scan_groups_;  // parts of scanned_, one per thread
  // The tensor of the last chunk that was probed, if its pages changed too much to keep any.
  std::optional<size_t> tensor_changed_fully_;
  uint32_t unprobed_ = 0;                  // chunks of that tensor since the last probe
  std::optional<ChunkDeltas> deltas_;      // empty: no base
  std::optional<EqualChunks> equal_;       // empty: nothing is shared
  std::vector<DeltaEncoder> compressors_;  // one per worker
  bool follows_delta_ = false;             // the last payload that was appended is a delta
  uint64_t chunks_ = 0;
  uint64_t chunks_reused_ = 0;
};

}  // namespace cairn::core::internal
