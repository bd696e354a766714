// Loads to host memory are planned (ReadPlan) by one thread while others read (ChunkReader). Loads
// to device memory bypass host memory where devices can read the segments; the rest passes through
// page-locked blocks.

#include "core/load/internal/load.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

#include "core/load/internal/chunk_reader.h"
#include "core/load/internal/device_load.h"
#include "core/load/internal/direct_load.h"
#include "core/load/internal/read_plan.h"

namespace cairn::core::internal {
namespace {

// A thread costs more than it saves.
constexpr uint64_t kSmallLoadBytes = 1 << 20;

// Loads to host memory. LoadReport::seconds is not set.
Result<LoadReport> LoadHost(const StepView& view, ReadPlan plan, const Progress& progress) {
  ProgressMeter meter(progress, plan.total_bytes());
  if (plan.total_bytes() <= kSmallLoadBytes) {
    ChunkReader reader(view, meter, ChunkReader::Limit::kNone);
    reader.Close(plan.AddReads(view, reader));
    CAIRN_TRY(reader.ReadAll());
    return LoadReport{.bytes_read = reader.bytes_read()};
  }
  ChunkReader reader(view, meter);
  // Planning many small chunks takes as long as reading them, so both run at the same time.
  const std::jthread planner([&] {
    try {
      reader.Close(plan.AddReads(view, reader));
    } catch (const std::bad_alloc&) {
      reader.Close(Fail(ErrorCode::kResourceExhausted, "not enough memory to plan the load"));
    }
  });
  CAIRN_TRY(reader.ReadAll());
  return LoadReport{.bytes_read = reader.bytes_read()};
}

Result<LoadReport> LoadAnywhere(const StepView& view, std::span<const LoadRequest> requests,
                                const Progress& progress, std::span<const DeviceStream> streams) {
  CAIRN_TRY_ASSIGN(ReadPlan plan, ReadPlan::Make(view, requests));
  if (!HasDeviceTargets(requests)) return LoadHost(view, std::move(plan), progress);
  uint64_t reported_bytes = 0;
  uint64_t before_bytes = 0;
  Progress report_progress;
  if (progress) {
    // Bytes that have to be read again were reported before.
    report_progress = [&](uint64_t done, uint64_t total) {
      reported_bytes = std::max(reported_bytes, before_bytes + done);
      return progress(reported_bytes, before_bytes + total);
    };
  }
  CAIRN_TRY_ASSIGN(const DirectLoad direct, LoadDirectly(view, requests, streams, report_progress));
  before_bytes = direct.loaded_bytes;
  const HostLoad load_part = [&](std::span<const LoadRequest> part,
                                 const Progress& part_progress) -> Result<LoadReport> {
    CAIRN_TRY_ASSIGN(ReadPlan part_plan, ReadPlan::Make(view, part));
    return LoadHost(view, std::move(part_plan), part_progress);
  };
  LoadReport report;
  if (!direct.rest.empty()) {
    CAIRN_TRY_ASSIGN(report, LoadThroughBlocks(direct.rest, streams, report_progress, load_part));
  }
  report.bytes_read += direct.bytes_read;
  report.direct_bytes = direct.bytes_read;
  return report;
}

}  // namespace

Result<LoadReport> RunLoad(const StepView& view, std::span<const LoadRequest> requests,
                           const Progress& progress, std::span<const DeviceStream> streams) {
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(LoadReport report, LoadAnywhere(view, requests, progress, streams));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  report.seconds = elapsed.count();
  return report;
}

}  // namespace cairn::core::internal
