// kv-bench gpu: copies over the bus and digests, each beside its limit and in turns with it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tools/bench/gpu.h"
#include "tools/common/text.h"

namespace cairn::tools::internal {
namespace {

constexpr uint64_t kBlockBytes = 4 << 20;  // as a save asks for them
constexpr uint64_t kSmallTensors = 20'000;
constexpr double kLeastSmallBytes = 256;
constexpr double kMostSmallBytes = 256 << 10;
constexpr uint64_t kDeviceAlignment = 512;  // of PyTorch's allocator

/// A tensor on the device and where it lies on the host.
struct Piece {
  uint64_t device_offset = 0;
  uint64_t host_offset = 0;
  uint64_t length_bytes = 0;
};
struct Pieces {
  std::vector<Piece> list;
  uint64_t payload_bytes = 0;
  uint64_t device_bytes = 0;
};

Pieces LargePieces(uint64_t bytes) {
  Pieces pieces{.payload_bytes = bytes, .device_bytes = bytes};
  for (uint64_t at = 0; at < bytes; at += kBlockBytes) {
    pieces.list.push_back({at, at, std::min(kBlockBytes, bytes - at)});
  }
  return pieces;
}

/// Sizes from 256 B to 256 KiB, as many of each octave, in an order without a pattern; fewer than
/// 20,000 where they would be more than `most_bytes`.
Pieces SmallPieces(uint64_t most_bytes) {
  Pieces pieces;
  uint64_t random = 1;
  for (uint64_t i = 0; i < kSmallTensors; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
    const double part = static_cast<double>(random >> 40) / (1 << 24);
    const double exact = kLeastSmallBytes * std::pow(kMostSmallBytes / kLeastSmallBytes, part);
    const uint64_t length = static_cast<uint64_t>(exact) / 4 * 4;
    if (pieces.payload_bytes + length > most_bytes) break;
    pieces.list.push_back({pieces.device_bytes, pieces.payload_bytes, length});
    pieces.payload_bytes += length;
    pieces.device_bytes += (length + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
  }
  return pieces;
}

/// Memory on both sides, and a queue between them.
struct BothSides {
  std::shared_ptr<core::DeviceQueue> queue;  // shared for its deleter
  std::unique_ptr<core::DeviceMemory> device;
  std::unique_ptr<LockedMemory> host;
};

Result<BothSides> MakeBothSides(GpuBench& bench, const Pieces& pieces) {
  BothSides sides;
  CAIRN_TRY_ASSIGN(sides.queue, bench.backend->OpenQueue(bench.device));
  CAIRN_TRY_ASSIGN(sides.device, bench.backend->Allocate(bench.device, pieces.device_bytes));
  CAIRN_TRY_ASSIGN(sides.host, LockedMemory::Make(bench.backend, pieces.device_bytes));
  return sides;
}

Result<void> AwaitAll(core::DeviceQueue& queue) {
  CAIRN_TRY_ASSIGN(const core::DeviceQueue::Mark mark, queue.Flush());
  return queue.Await(mark);
}

Result<void> BringAll(const Pieces& pieces, const BothSides& sides, int device) {
  for (const Piece& piece : pieces.list) {
    CAIRN_TRY(
        sides.queue->CopyOut({.dtype = core::DType::kUInt8,
                             .shape = {piece.length_bytes},
                             .data = sides.device->data() + piece.device_offset,
                             .device = device},
                            0, sides.host->bytes().subspan(piece.host_offset, piece.length_bytes)));
  }
  return AwaitAll(*sides.queue);
}

Result<void> TakeAll(const Pieces& pieces, const BothSides& sides, int device) {
  for (const Piece& piece : pieces.list) {
    CAIRN_TRY(sides.queue->CopyIn(sides.host->bytes().subspan(piece.host_offset, piece.length_bytes),
                                 {core::DType::kUInt8,
                                  {piece.length_bytes},
                                  {},
                                  sides.device->data() + piece.device_offset,
                                  device},
                                 0));
  }
  return AwaitAll(*sides.queue);
}

/// Measures both ways through the queue and by plain copies, in turns.
Result<void> CopyBothWays(GpuBench& bench, const std::string& name, const Pieces& pieces,
                          double least) {
  CAIRN_TRY_ASSIGN(const BothSides sides, MakeBothSides(bench, pieces));
  const std::span<std::byte> host = sides.host->bytes().first(pieces.payload_bytes);
  const std::string out = fmt::format("to host, {}", name);
  const std::string in = fmt::format("to device, {}", name);
  const std::string best = fmt::format(", cudaMemcpyAsync beside {}", name);
  // Run 0 makes the queue's buffers and touches all memory; it is not reported.
  for (uint64_t run = 0; run <= bench.options.repeat; ++run) {
    const auto add = [&](const std::string& what, double seconds) {
      if (run == 0) return;
      BenchRow row = GpuRow(what, run, pieces.payload_bytes, seconds);
      row.extra["tensors"] = pieces.list.size();
      bench.report.Add(row);
    };
    CAIRN_TRY_ASSIGN(double seconds, bench.plain->CopyOut(sides.device->data(), host));
    add("to host" + best, seconds);
    CAIRN_TRY_ASSIGN(seconds, TimeWork([&] { return BringAll(pieces, sides, bench.device); }));
    add(out, seconds);
    CAIRN_TRY_ASSIGN(seconds, bench.plain->CopyIn(host, sides.device->data()));
    add("to device" + best, seconds);
    CAIRN_TRY_ASSIGN(seconds, TimeWork([&] { return TakeAll(pieces, sides, bench.device); }));
    add(in, seconds);
  }
  bench.report.AddBar("gpu", out, "to host" + best, least);
  bench.report.AddBar("gpu", in, "to device" + best, least);
  return {};
}

}  // namespace

Result<void> BenchGpuCopies(GpuBench& bench) {
  CAIRN_TRY(CopyBothWays(bench, "large tensors", LargePieces(bench.options.bytes), 0.95));
  const Pieces small = SmallPieces(bench.options.bytes);
  return CopyBothWays(bench, fmt::format("{} small tensors", GroupedCount(small.list.size())),
                      small, 0.85);
}

Result<void> BenchGpuDigest(GpuBench& bench) {
  const uint64_t bytes = bench.options.bytes;
  CAIRN_TRY_ASSIGN(const auto memory, bench.backend->Allocate(bench.device, bytes));
  CAIRN_TRY(bench.plain->Fill(memory->data(), bytes, 0x5a));
  CAIRN_TRY(bench.plain->Synchronize());
  // Kernels are short: as many runs as make a median steady, of which the first is not counted.
  const uint64_t runs = std::max<uint64_t>(bench.options.repeat, 5);
  for (uint64_t run = 0; run <= runs; ++run) {
    CAIRN_TRY_ASSIGN(const double read, bench.plain->Read(memory->data(), bytes));
    CAIRN_TRY_ASSIGN(const double digest, bench.plain->Digest(memory->data(), bytes));
    if (run == 0) continue;
    bench.report.Add(GpuRow("reading kernel", run, bytes, read));
    bench.report.Add(GpuRow("digest kernel", run, bytes, digest));
  }
  bench.report.AddBar("gpu", "digest kernel", "reading kernel", 0.8);
  return {};
}

}  // namespace cairn::tools::internal
