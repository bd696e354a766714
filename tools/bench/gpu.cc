// kv-bench gpu: copies over the bus, and digests. Each takes turns with the operation that limits
// it. bench/gpu.py measures saves and loads.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "cuda/backend.h"
#include "cuda/measure.h"
#include "tools/bench/measure.h"
#include "tools/bench/verbs.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

constexpr uint64_t kBlockBytes = 4 << 20;  // as a save copies them
constexpr uint64_t kSmallTensors = 20'000;
constexpr double kMinSmallBytes = 256;
constexpr double kMaxSmallBytes = 256 << 10;
constexpr uint64_t kDeviceAlignment = 512;  // as of PyTorch's allocator

/// Ownership: borrows the options, the report and the backend. Threads: one.
struct GpuBench {
  const BenchOptions& options;
  BenchReport& report;
  core::DeviceBackend* backend = nullptr;  // the process's backend
  std::unique_ptr<cuda::PlainGpu> plain;
};

void Describe(const GpuBench& bench) {
  const cuda::GpuDescription& gpu = bench.plain->description();
  bench.report.AddFact("device", {{"name", gpu.name},
                                  {"device", bench.options.device},
                                  {"memory_bytes", gpu.memory_bytes},
                                  {"multiprocessors", gpu.multiprocessors},
                                  {"driver_cuda", gpu.driver_cuda},
                                  {"runtime_cuda", gpu.runtime_cuda}});
}

/// Returns a row of `bytes` in `seconds`.
BenchRow GpuRow(const std::string& what, uint64_t run, uint64_t bytes, double seconds) {
  BenchRow row{.what = what, .run = run, .bytes = bytes};
  row.measured.seconds = seconds;
  row.in_this_process = false;  // neither processor time nor memory was measured
  return row;
}

/// Returns the seconds that `operation` takes by the clock of the host.
Result<double> TimeOf(const std::function<Result<void>()>& operation) {
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_TRY(operation());
  return SecondsSince(begin);
}

// --- Copies

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

/// Page-locked host memory, whose deleter unlocks and frees it. kResourceExhausted: there is not
/// enough memory, or it cannot be locked.
Result<std::shared_ptr<std::byte>> LockMemory(core::DeviceBackend* backend, uint64_t bytes) {
  constexpr uint64_t kPageBytes = 4096;
  const uint64_t allocated_bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(kPageBytes, allocated_bytes)), &std::free);
  if (memory == nullptr) {
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("cannot allocate {} of memory; give fewer --bytes", HumanBytes(bytes)));
  }
  CAIRN_TRY(backend->Pin({memory.get(), bytes}));
  return std::shared_ptr<std::byte>(memory.release(), [backend, bytes](std::byte* locked) {
    backend->Unpin({locked, bytes});
    std::free(locked);
  });
}

/// Memory on the device and on the host, and a queue between them.
struct BothSides {
  std::shared_ptr<core::DeviceQueue> queue;  // shared for its deleter
  core::DeviceMemory device;
  std::shared_ptr<std::byte> host;

  std::span<std::byte> HostOf(const CopyRange& range) const {
    return {host.get() + range.host_offset, range.length_bytes};
  }
};

Result<BothSides> MakeBothSides(GpuBench& bench, const CopyList& list) {
  BothSides sides;
  const int device = bench.options.device;
  CAIRN_TRY_ASSIGN(sides.queue, bench.backend->OpenQueue(device));
  CAIRN_TRY_ASSIGN(sides.device, bench.backend->Allocate(device, list.device_bytes));
  CAIRN_TRY_ASSIGN(sides.host, LockMemory(bench.backend, list.device_bytes));
  sides.queue->JoinHostRanges(true);  // as saves and loads do; it is one allocation
  return sides;
}

Result<void> AwaitAll(core::DeviceQueue& queue) {
  CAIRN_TRY_ASSIGN(const auto fence, queue.Flush());
  return fence->Await();
}

Result<void> CopyAllOut(const CopyList& list, const BothSides& sides, int device) {
  for (const CopyRange& range : list.ranges) {
    CAIRN_TRY(sides.queue->CopyOut({.dtype = core::DType::kUInt8,
                                    .shape = {range.length_bytes},
                                    .data = sides.device.data() + range.device_offset,
                                    .device = device},
                                   0, sides.HostOf(range)));
  }
  return AwaitAll(*sides.queue);
}

Result<void> CopyAllIn(const CopyList& list, const BothSides& sides, int device) {
  for (const CopyRange& range : list.ranges) {
    CAIRN_TRY(sides.queue->CopyIn(sides.HostOf(range),
                                  {core::DType::kUInt8,
                                   {range.length_bytes},
                                   {},
                                   sides.device.data() + range.device_offset,
                                   device},
                                  0));
  }
  return AwaitAll(*sides.queue);
}

/// Measures both directions, with the queue and with plain copies in turns.
Result<void> CopyBothWays(GpuBench& bench, const std::string& name, const CopyList& list,
                          double least) {
  CAIRN_TRY_ASSIGN(const BothSides sides, MakeBothSides(bench, list));
  const std::span<std::byte> host(sides.host.get(), list.payload_bytes);
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
    CAIRN_TRY_ASSIGN(double seconds, bench.plain->CopyOut(sides.device.data(), host));
    add("to host" + best, seconds);
    CAIRN_TRY_ASSIGN(seconds,
                     TimeOf([&] { return CopyAllOut(list, sides, bench.options.device); }));
    add(out, seconds);
    CAIRN_TRY_ASSIGN(seconds, bench.plain->CopyIn(host, sides.device.data()));
    add("to device" + best, seconds);
    CAIRN_TRY_ASSIGN(seconds, TimeOf([&] { return CopyAllIn(list, sides, bench.options.device); }));
    add(in, seconds);
  }
  bench.report.AddRateBar(out, "to host" + best, least);
  bench.report.AddRateBar(in, "to device" + best, least);
  return {};
}

/// Measures the copies of a device queue compared with cudaMemcpyAsync, for large tensors and for
/// 20,000 small ones, in both directions.
Result<void> BenchCopies(GpuBench& bench) {
  CAIRN_TRY(CopyBothWays(bench, "large tensors", LargeTensors(bench.options.bytes), 0.95));
  const CopyList small = SmallTensors(bench.options.bytes);
  return CopyBothWays(bench, fmt::format("{} small tensors", GroupedCount(small.ranges.size())),
                      small, 0.85);
}

/// Measures the digest kernel compared with a kernel that only reads. Neither depends on the bytes,
/// so the memory has any.
Result<void> BenchDigest(GpuBench& bench) {
  const uint64_t bytes = bench.options.bytes;
  CAIRN_TRY_ASSIGN(const auto memory, bench.backend->Allocate(bench.options.device, bytes));
  // Kernels are short, so there are enough runs for a stable median. The first run does not count.
  const uint64_t runs = std::max<uint64_t>(bench.options.repeat, 5);
  for (uint64_t run = 0; run <= runs; ++run) {
    CAIRN_TRY_ASSIGN(const double read, bench.plain->Read(memory.data(), bytes));
    CAIRN_TRY_ASSIGN(const double digest, bench.plain->Digest(memory.data(), bytes));
    if (run == 0) continue;
    bench.report.Add(GpuRow("reading kernel", run, bytes, read));
    bench.report.Add(GpuRow("digest kernel", run, bytes, digest));
  }
  bench.report.AddRateBar("digest kernel", "reading kernel", 0.8);
  return {};
}

}  // namespace

Result<void> BenchGpu(const BenchOptions& options, BenchReport& report) {
  cuda::Register();
  GpuBench bench{.options = options, .report = report};
  auto backend = cuda::FindBackend();
  if (!backend) {
    return Fail(
        backend.error().code,
        fmt::format("no GPU can be measured here: {}; use a machine with a GPU and its driver",
                    backend.error().message));
  }
  bench.backend = *backend;
  CAIRN_TRY_ASSIGN(bench.plain, cuda::PlainGpu::Open(options.device));
  Describe(bench);
  if (options.part != "digest") CAIRN_TRY(BenchCopies(bench));
  if (options.part != "copies") CAIRN_TRY(BenchDigest(bench));
  return {};
}

}  // namespace cairn::tools
