#pragma once
/// Writes the chunks of a plan in windows: digests those that may be unchanged, compares their page
/// digests with those of the base step, and records a reference or appends the chunk, completely or
/// only its changed pages.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/base/internal/worker_pool.h"
#include "core/save/internal/chunk_source.h"
#include "core/save/internal/device_save.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "kv/snapshot.h"
#include "kv/step_writer.h"

namespace cairn::core::internal {

/// What a ChunkWriter works with. All must outlive it.
struct ChunkWriterContext {
  const SavePlan& plan;
  kv::StepWriter& writer;
  WorkerPool& pool;  // digests
  ProgressMeter& progress;
  uint64_t step = 0;
  const kv::Snapshot* base = nullptr;  // null: no chunk has a base
  SavedChunks* saved = nullptr;        // null: nobody asks what was written
  DeviceSave* device = nullptr;        // null: all tensors are in host memory
};

/// Each tensor's record is added before its chunks, so that the footer of their segment can have
/// both. Threads: one.
class ChunkWriter {
 public:
  explicit ChunkWriter(const ChunkWriterContext& context);
  /// After an error, waits for the digests that are being computed.
  ~ChunkWriter();
  ChunkWriter(const ChunkWriter&) = delete;
  ChunkWriter& operator=(const ChunkWriter&) = delete;

  /// Adds a chunk; chunks are added in key order. kConflict: its digest was known and the base no
  /// longer has it.
  Result<void> Add(PlannedChunk chunk);
  /// Writes the last windows, and the records of tensors without chunks.
  Result<void> Finish();

  uint64_t chunks() const { return chunks_; }
  uint64_t chunks_reused() const { return chunks_reused_; }

 private:
  struct Window {
    std::vector<PlannedChunk> chunks;
    uint64_t bytes = 0;
  };
  struct Stored {
    kv::Extents extents;
    kv::Digest digest;
  };

  /// Begins to digest the candidates of the window that was filled, and writes the one before it.
  Result<void> FlushWindow();
  /// Decides which pages of the changed chunks are written.
  void PlanRanges(Window& window);
  bool IsWorthProbing(const PlannedChunk& chunk);
  Result<void> AddTensorRecords(size_t end);
  Result<void> Write(const PlannedChunk& chunk);
  Result<Stored> Append(const PlannedChunk& chunk);
  void RecordSaved(const PlannedChunk& chunk, const kv::Digest& digest, bool reused);

  const ChunkWriterContext context_;
  size_t next_tensor_ = 0;                       // the first whose record is not yet added
  std::vector<std::vector<std::byte>> scratch_;  // one page per worker
  Window filling_;
  Window digested_;                            // or being digested
  std::vector<PlannedChunk*> candidates_;      // of digested_
  std::optional<size_t> tensor_changed_fully_; // the tensor of the last chunk probed, if it did
  uint32_t unprobed_ = 0;                      // its chunks since one was probed
  uint64_t chunks_ = 0;
  uint64_t chunks_reused_ = 0;
};

}  // namespace cairn::core::internal
