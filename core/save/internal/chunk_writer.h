#pragma once
/// Writes the chunks of a plan. Chunks that may be unchanged are digested and compared with the
/// base step; each chunk then becomes a reference to the bytes of the base, or is appended:
/// completely, only its changed pages, or as a delta (chunk_deltas.h).
///
/// Chunks are collected in windows of bounded size. While the candidates of one window are digested
/// on all cores, the window before it is written.

#include <cstdint>

#include "core/base/internal/progress_meter.h"
#include "core/save/internal/device_save.h"
#include "core/save/internal/save_plan.h"
#include "core/save/internal/saved_chunks.h"
#include "core/save/save_options.h"
#include "core/step/internal/lookup.h"
#include "kv/io/worker_pool.h"
#include "kv/step_writer.h"

namespace cairn::core::internal {

struct ChunkWriterContext {
  const SavePlan& plan;
  kv::StepWriter& writer;
  kv::WorkerPool& pool;  // for digests
  ProgressMeter& progress;
  const SaveOptions& options;
  uint64_t step = 0;
  const StepView* base = nullptr;  // null: no chunk has a base
  bool compress = false;           // chunks in host memory that are written completely
  SavedChunks* saved = nullptr;  // its shards are replaced; null: what was written is not recorded
  DeviceSave* device = nullptr;  // null: all tensors are in host memory
};

struct WrittenChunks {
  uint64_t chunks = 0;
  uint64_t reused = 0;
  uint64_t bytes = 0;  // of the chunks that are not reused, before compression
};

/// Writes all chunks of the plan, and the record of each tensor before its chunks, so that the
/// footer of their segment contains both. kConflict: the bytes of a chunk were not staged because
/// the base had them, and the base has been deleted or replaced since. Other errors: see
/// kv::StepWriter, and kCancelled.
Result<WrittenChunks> WriteChunks(const ChunkWriterContext& context);

}  // namespace cairn::core::internal
