// kv-bench gpu: copies over the bus, and digests. Each takes turns with the operation that limits
// it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tools/bench/gpu_bench.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

constexpr uint64_t kBlockBytes = 4 << 20;  // as a save copies them
constexpr uint64_t kSmallTensors = 20'000;
constexpr double kMinSmallBytes = 256;
constexpr double kMaxSmallBytes = 256 << 10;
constexpr uint64_t kDeviceAlignment = 512;  // as of PyTorch's allocator

/// A tensor on the device and its copy on the host.
struct CopyRange {
  uint64_t device_offset = 0;
  uint64_t host_offset = 0;
  uint64_t length_bytes = 0;
};
struct CopyList {
  std::vector<CopyRange> ranges;
  uint64_t payload_bytes = 0;
  uint64_t device_bytes = 0;
};

CopyList LargeTensors(uint64_t bytes) {
  CopyList list{.payload_bytes = bytes, .device_bytes = bytes};
  for (uint64_t at = 0; at < bytes; at += kBlockBytes) {
    list.ranges.push_back({at, at, std::min(kBlockBytes, bytes - at)});
  }
  return list;
}

/// Returns sizes from 256 B to 256 KiB, the same number per octave, in random order; fewer than
/// 20,000 if they would exceed `max_bytes`.
CopyList SmallTensors(uint64_t max_bytes) {
  CopyList list;
  uint64_t random = 1;
  for (uint64_t i = 0; i < kSmallTensors; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
    const double part = static_cast<double>(random >> 40) / (1 << 24);
    const double exact = kMinSmallBytes * std::pow(kMaxSmallBytes / kMinSmallBytes, part);
    const uint64_t length = static_cast<uint64_t>(exact) / 4 * 4;
    if (list.payload_bytes + length > max_bytes) break;
    list.ranges.push_back({list.device_bytes, list.payload_bytes, length});
    list.payload_bytes += length;
    list.device_bytes += (length + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
  }
  return list;
}

/// Memory on the device and on the host, and a queue between them.
struct BothSides {
  std::shared_ptr<core::DeviceQueue> queue;  // shared for its deleter
  std::unique_ptr<core::DeviceMemory> device;
  LockedMemory host;
};

Result<BothSides> MakeBothSides(GpuBench& bench, const CopyList& list) {
  BothSides sides;
  CAIRN_TRY_ASSIGN(sides.queue, bench.backend->OpenQueue(bench.device));
  CAIRN_TRY_ASSIGN(sides.device, bench.backend->Allocate(bench.device, list.device_bytes));
  CAIRN_TRY_ASSIGN(sides.host, LockedMemory::Make(bench.backend, list.device_bytes));
  sides.queue->JoinHostRanges(true);  // as saves and loads do; it is one allocation
  return sides;
}

Result<void> AwaitAll(core::DeviceQueue& queue) {
  CAIRN_TRY_ASSIGN(const core::DeviceQueue::Mark mark, queue.Flush());
  return queue.Await(mark);
}

Result<void> CopyAllOut(const CopyList& list, const BothSides& sides, int device) {
  for (const CopyRange& range : list.ranges) {
    CAIRN_TRY(
        sides.queue->CopyOut({.dtype = core::DType::kUInt8,
                              .shape = {range.length_bytes},
                              .data = sides.device->data() + range.device_offset,
                              .device = device},
                             0, sides.host.bytes().subspan(range.host_offset, range.length_bytes)));
  }
  return AwaitAll(*sides.queue);
}

Result<void> CopyAllIn(const CopyList& list, const BothSides& sides, int device) {
  for (const CopyRange& range : list.ranges) {
    CAIRN_TRY(sides.queue->CopyIn(sides.host.bytes().subspan(range.host_offset, range.length_bytes),
                                  {core::DType::kUInt8,
                                   {range.length_bytes},
                                   {},
                                   sides.device->data() + range.device_offset,
                                   device},
                                  0));
  }
  return AwaitAll(*sides.queue);
}

/// Measures both directions, with the queue and with plain copies in turns.
Result<void> CopyBothWays(GpuBench& bench, const std::string& name, const CopyList& list,
                          double least) {
  CAIRN_TRY_ASSIGN(const BothSides sides, MakeBothSides(bench, list));
  const std::span<std::byte> host = sides.host.bytes().first(list.payload_bytes);
  const std::string out = fmt::format("to host, {}", name);
  const std::string in = fmt::format("to device, {}", name);
  const std::string best = fmt::format(", cudaMemcpyAsync, {}", name);
  // Run 0 creates the buffers of the queue and touches all memory; it is not reported.
  for (uint64_t run = 0; run <= bench.options.repeat; ++run) {
    const auto add = [&](const std::string& what, double seconds) {
      if (run == 0) return;
      BenchRow row = GpuRow(what, run, list.payload_bytes, seconds);
      row.extra["tensors"] = list.ranges.size();
      bench.report.Add(row);
    };
    CAIRN_TRY_ASSIGN(double seconds, bench.plain->CopyOut(sides.device->data(), host));
    add("to host" + best, seconds);
    CAIRN_TRY_ASSIGN(seconds, TimeOf([&] { return CopyAllOut(list, sides, bench.device); }));
    add(out, seconds);
    CAIRN_TRY_ASSIGN(seconds, bench.plain->CopyIn(host, sides.device->data()));
    add("to device" + best, seconds);
    CAIRN_TRY_ASSIGN(seconds, TimeOf([&] { return CopyAllIn(list, sides, bench.device); }));
    add(in, seconds);
  }
  bench.report.AddRateBar(out, "to host" + best, least);
  bench.report.AddRateBar(in, "to device" + best, least);
  return {};
}

}  // namespace

Result<void> BenchGpuCopies(GpuBench& bench) {
  CAIRN_TRY(CopyBothWays(bench, "large tensors", LargeTensors(bench.options.bytes), 0.95));
  const CopyList small = SmallTensors(bench.options.bytes);
  return CopyBothWays(bench, fmt::format("{} small tensors", GroupedCount(small.ranges.size())),
                      small, 0.85);
}

Result<void> BenchGpuDigest(GpuBench& bench) {
  const uint64_t bytes = bench.options.bytes;
  CAIRN_TRY_ASSIGN(const auto memory, bench.backend->Allocate(bench.device, bytes));
  CAIRN_TRY(bench.plain->Fill(memory->data(), bytes, 0x5a));
  CAIRN_TRY(bench.plain->Synchronize());
  // Kernels are short, so there are enough runs for a stable median. The first run does not count.
  const uint64_t runs = std::max<uint64_t>(bench.options.repeat, 5);
  for (uint64_t run = 0; run <= runs; ++run) {
    CAIRN_TRY_ASSIGN(const double read, bench.plain->Read(memory->data(), bytes));
    CAIRN_TRY_ASSIGN(const double digest, bench.plain->Digest(memory->data(), bytes));
    if (run == 0) continue;
    bench.report.Add(GpuRow("reading kernel", run, bytes, read));
    bench.report.Add(GpuRow("digest kernel", run, bytes, digest));
  }
  bench.report.AddRateBar("digest kernel", "reading kernel", 0.8);
  return {};
}

}  // namespace cairn::tools
