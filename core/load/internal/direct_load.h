#pragma once
/// Loads into device memory past host memory: devices read the segments themselves, and digest what
/// they have read.

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/progress.h"
#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

struct DirectLoad {
  std::vector<LoadRequest> rest;  // what is still to be loaded, in the order that it came
  uint64_t bytes_read = 0;
  uint64_t loaded_bytes = 0;  // of the requests that are not in `rest`
};

/// Fills those targets that devices can: contiguous ones of 1 MiB or more, whose chunks are wanted
/// whole and lie in files that DeviceBackend::OpenFile takes. All others are the rest; so are those
/// whose bytes do not match their digests or could not be read, as another reading says what is
/// wrong with them. `requests` have been checked. What devices write follows what `streams` hold.
/// Memory: the records of the chunks. Errors: kCancelled; as DeviceQueues::Open.
Result<DirectLoad> LoadDirectly(const StepView& view, std::span<const LoadRequest> requests,
                                std::span<const DeviceStream> streams, const Progress& progress);

}  // namespace cairn::core::internal
