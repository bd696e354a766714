#pragma once
/// Loads to device memory without passing through host memory: devices read the segments themselves
/// and digest what they have read.

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/progress.h"
#include "core/load/load_options.h"
#include "core/step/internal/lookup.h"

namespace cairn::core::internal {

struct DirectLoad {
  std::vector<LoadRequest> rest;  // still to be loaded, in the order of the requests
  uint64_t bytes_read = 0;
  uint64_t loaded_bytes = 0;  // of the requests that are not in `rest`
};

/// Fills the targets that devices can read themselves: contiguous targets of at least 1 MiB that
/// need complete chunks, in files that DeviceBackend::OpenFile accepts. All other requests are the
/// rest; so are those whose bytes do not match their digests or could not be read, because loading
/// them again through host memory returns the exact error. Requires that all of `requests` have
/// been checked. Writes to the targets are ordered after the work in `streams`. Memory: the records
/// of the chunks. Errors: kCancelled, and those of DeviceQueues::Open.
Result<DirectLoad> LoadDirectly(const StepView& view, std::span<const LoadRequest> requests,
                                std::span<const DeviceStream> streams, const Progress& progress);

}  // namespace cairn::core::internal
