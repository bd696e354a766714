#pragma once
/// Updates tensors in place from the bytes of one step to the bytes of another.
///
/// 1. The chunk records of both steps determine which chunks differ. A tensor that the base step
///    lacks, or that it stores with another dtype, shape or grid of chunks, is read completely.
/// 2. The memory of all other tensors is digested and compared with the base step, before anything
///    is written. The digests of its pages are kept for the chunks that differ.
/// 3. In these chunks, pages whose stored digests differ from the memory are read. Every page is
///    verified.
///
/// Memory that is not one contiguous tensor in host memory (strided or sharded targets, devices,
/// aliases) is not compared: it is read completely if its tensor differs, and otherwise left alone.

#include <span>

#include "core/base/progress.h"
#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

/// See CheckpointStore::Update. `base` and `view` are steps of the same store. `is_compared` must
/// be false in the first call; it is set when the memory was found to contain the base. If a call
/// returns kNotFound because segments were removed, another one with newer views and the same
/// `is_compared` continues: it accepts memory with bytes of both steps.
Result<UpdateReport> RunUpdate(const StepView& base, const StepView& view,
                               std::span<const LoadRequest> requests, const Progress& progress,
                               std::span<const DeviceStream> streams, bool& is_compared);

}  // namespace cairn::core::internal
