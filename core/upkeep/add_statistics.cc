// The chunks of one step after another are read in windows, and examined on all threads.

#include "core/upkeep/add_statistics.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/save/internal/chunk_statistics.h"
#include "core/upkeep/payload_reader.h"
#include "kv/base/chunk_record.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/io/worker_pool.h"
#include "kv/record_statistics.h"

namespace cairn::core {
namespace {

constexpr uint64_t kExaminedBytes = 32 << 20;
constexpr size_t kExaminedChunks = 4096;

/// A chunk without statistics.
struct UnknownChunk {
  const TensorInfo* tensor = nullptr;
  ChunkInfo chunk;
};

kv::ChunkStatistics StatisticsOf(DType dtype, std::span<const std::byte> bytes) {
  internal::ChunkStatisticsAccumulator accumulator(dtype);
  while (!bytes.empty()) {  // pages, as in a save
    const auto page = bytes.first(std::min<size_t>(bytes.size(), kv::kPageBytes));
    accumulator.Add(page, page.data() + page.size());
    bytes = bytes.subspan(page.size());
  }
  return accumulator.Finish();
}

class StatisticsAdder {
 public:
  StatisticsAdder(const CheckpointStore& store, const Progress& progress)
      : store_(store), progress_(progress) {}

  Result<void> AddStep(const Contents& contents) {
    std::vector<TensorInfo> tensors = contents.tensors;
    std::erase_if(tensors, [](const TensorInfo& tensor) {
      return tensor.hidden || tensor.alias_of.has_value();  // as in a save
    });
    std::vector<UnknownChunk> chunks;
    CAIRN_TRY(store_.ForEachChunk(
        contents.step, tensors, [&](size_t i, const ChunkInfo& chunk) -> Result<void> {
          if (chunk.statistics) return {};
          steps_.insert(contents.step.step);
          auto& known = statistics_[kv::ChunkKey(tensors[i].fqn, chunk.box.offsets)];
          const auto is_same = [&](const auto& one) { return one.first == chunk.digest; };
          if (std::ranges::any_of(known, is_same)) return {};
          known.emplace_back(chunk.digest, kv::ChunkStatistics());
          chunks.push_back({&tensors[i], chunk});
          return {};
        }));
    for (const UnknownChunk& chunk : chunks) total_bytes_ += chunk.chunk.length_bytes();
    for (size_t begin = 0, end = 0; begin < chunks.size(); begin = end) {
      for (uint64_t bytes = 0; end < chunks.size() && end - begin < kExaminedChunks; ++end) {
        bytes += chunks[end].chunk.length_bytes();
        if (bytes > kExaminedBytes && end > begin) break;
      }
      CAIRN_TRY(Examine(contents.step, std::span(chunks).subspan(begin, end - begin)));
    }
    return {};
  }

  Result<AddStatisticsReport> Commit() {
    if (!steps_.empty()) {
      CAIRN_TRY_ASSIGN(report_.steps, kv::RecordStatistics(store_.kv(), steps_, statistics_));
    }
    return report_;
  }

 private:
  Result<void> Examine(const kv::StepInfo& step, std::span<const UnknownChunk> chunks) {
    if (progress_ && !progress_(report_.bytes, total_bytes_)) {
      return Fail(ErrorCode::kCancelled, "stopped on request");
    }
    std::vector<std::vector<std::byte>> bytes(chunks.size());
    std::vector<LoadRequest> requests;
    for (size_t i = 0; i < chunks.size(); ++i) {
      const auto& [tensor, chunk] = chunks[i];
      bytes[i].resize(chunk.length_bytes());
      requests.push_back(
          {tensor->fqn,
           chunk.box,
           {.dtype = tensor->dtype, .shape = chunk.box.sizes, .data = bytes[i].data()}});
    }
    CAIRN_TRY(store_.Examine(step, requests));
    std::vector<kv::ChunkStatistics> found(chunks.size());
    kv::ParallelFor(chunks.size(), [&](size_t i, size_t) {
      found[i] = StatisticsOf(chunks[i].tensor->dtype, bytes[i]);
    });
    for (size_t i = 0; i < chunks.size(); ++i) {
      const auto& [tensor, chunk] = chunks[i];
      for (auto& [digest, statistics] : statistics_[kv::ChunkKey(tensor->fqn, chunk.box.offsets)]) {
        if (digest == chunk.digest) statistics = found[i];
      }
      report_.bytes += chunk.length_bytes();
    }
    report_.chunks += chunks.size();
    return {};
  }

  const CheckpointStore& store_;
  const Progress& progress_;
  kv::StatisticsOfChunks statistics_;
  std::set<uint64_t> steps_;
  uint64_t total_bytes_ = 0;
  AddStatisticsReport report_;
};

}  // namespace

Result<AddStatisticsReport> AddStatistics(CheckpointStore& store, std::span<const uint64_t> steps,
                                          const Progress& progress) {
  StatisticsAdder adder(store, progress);
  for (const uint64_t step : steps) {
    CAIRN_TRY_ASSIGN(const Contents contents, store.List(step));
    CAIRN_TRY(adder.AddStep(contents));
  }
  return adder.Commit();
}

}  // namespace cairn::core
