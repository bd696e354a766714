// kv-bench digest: the page-tree digest compared with reading and copying the same memory.

#include "kv/base/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "tools/bench/model_state.h"
#include "tools/bench/verbs.h"

namespace cairn::tools {
namespace {

using Operation = std::function<uint64_t(std::span<const std::byte>, std::span<std::byte>)>;

uint64_t Digest(std::span<const std::byte> source, std::span<std::byte>) {
  // One chunk after the other, as a save does.
  constexpr uint64_t kChunkBytes = 4 << 20;
  uint64_t mixed = 0;
  std::vector<uint64_t> page_digests;
  for (uint64_t at = 0; at < source.size(); at += kChunkBytes) {
    const auto chunk = source.subspan(at, std::min<uint64_t>(kChunkBytes, source.size() - at));
    page_digests.clear();
    kv::AppendPageDigests(chunk, page_digests);
    mixed ^= kv::RootDigest(page_digests, chunk.size()).lo;
  }
  return mixed;
}

uint64_t Sum(std::span<const std::byte> source, std::span<std::byte>) {
  uint64_t sum = 0;
  for (uint64_t at = 0; at + 8 <= source.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, source.data() + at, 8);
    sum += word;
  }
  return sum;
}

uint64_t Copy(std::span<const std::byte> source, std::span<std::byte> target) {
  std::memcpy(target.data(), source.data(), source.size());
  return static_cast<uint64_t>(target[source.size() / 2]);
}

/// Runs `operation` on equal ranges of the memory, one range per thread. `target` may be empty.
BenchRow Measure(const std::string& what, uint64_t run, unsigned threads,
                 const Operation& operation, std::span<const std::byte> source,
                 std::span<std::byte> target) {
  BenchRow row{.verb = "digest", .run = run, .bytes = source.size()};
  row.what = fmt::format("{}, {} thread{}", what, threads, threads == 1 ? "" : "s");
  const uint64_t range_bytes = source.size() / threads / 64 * 64;
  std::vector<uint64_t> results(threads);
  const Meter meter;
  {
    std::vector<std::jthread> workers;
    for (unsigned t = 0; t < threads; ++t) {
      const uint64_t begin = range_bytes * t;
      const uint64_t length = t + 1 == threads ? source.size() - begin : range_bytes;
      workers.emplace_back([&, t, begin, length] {
        const auto of_target = target.empty() ? target : target.subspan(begin, length);
        results[t] = operation(source.subspan(begin, length), of_target);
      });
    }
  }
  row.measured = meter.Stop();
  // The results are printed so that no compiler can remove the computation.
  row.extra = {{"threads", threads},
               {"result", std::accumulate(results.begin(), results.end(), uint64_t{0})}};
  return row;
}

}  // namespace

BenchRow MeasureSum(std::span<const std::byte> memory, uint64_t run) {
  return Measure("sum", run, /*threads=*/2, Sum, memory, {});
}

Result<void> BenchDigest(const BenchOptions& options, BenchReport& report) {
  const std::vector<BenchTensor> plan = {
      {"memory", core::DType::kUInt8, {options.bytes}, options.bytes, 0}};
  if (options.bytes == 0)
    return Fail(ErrorCode::kInvalidArgument, "--bytes must not be 0; give a size such as 64MiB");
  CAIRN_TRY_ASSIGN(const ModelMemory source, ModelMemory::Allocate(plan));
  CAIRN_TRY_ASSIGN(const ModelMemory target, ModelMemory::Allocate(plan));
  source.Fill(0, 1);
  for (uint64_t run = 1; run <= options.repeat; ++run) {
    for (const unsigned threads : {1u, 2u}) {
      for (const auto& [what, operation] : std::initializer_list<std::pair<const char*, Operation>>{
               {"page-tree digest", Digest}, {"sum", Sum}, {"memcpy", Copy}}) {
        report.Add(Measure(what, run, threads, operation, source.bytes_of(0), target.bytes_of(0)));
      }
    }
  }
  report.AddRatio("digest", "page-tree digest, 1 thread", "sum, 1 thread");
  report.AddRatio("digest", "page-tree digest, 2 threads", "sum, 2 threads");
  return {};
}

}  // namespace cairn::tools
