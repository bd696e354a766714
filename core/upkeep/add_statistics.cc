// The chunks of one step after another are read in windows, and examined on all threads. Each step
// is committed for itself: in another one, the same bytes may have another dtype.

#include "core/upkeep/add_statistics.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/save/internal/chunk_statistics.h"
#include "core/upkeep/payload_reader.h"
#include "kv/base/chunk_record.h"
#include "kv/base/digest.h"
#include "kv/base/key.h"
#include "kv/io/worker_pool.h"
#include "kv/rewrite_chunks.h"

namespace cairn::core {
namespace {

constexpr uint64_t kExaminedBytes = 32 << 20;
constexpr size_t kExaminedChunks = 4096;
// A commit writes all records of its step again.
constexpr uint64_t kCommitBytes = uint64_t{16} << 30;

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
          const std::string key = kv::ChunkKey(tensors[i].fqn, chunk.box.offsets);
          if (const auto known = Find(key, tensors[i].dtype, chunk.digest)) {
            found_[key] = *known;
          } else {
            chunks.push_back({&tensors[i], chunk});
          }
          return {};
        }));
    for (const UnknownChunk& chunk : chunks) total_bytes_ += chunk.chunk.length_bytes();
    const uint64_t steps = report_.steps;
    uint64_t committed_bytes = report_.bytes;
    for (size_t begin = 0, end = 0; begin < chunks.size(); begin = end) {
      for (uint64_t bytes = 0; end < chunks.size() && end - begin < kExaminedChunks; ++end) {
        bytes += chunks[end].chunk.length_bytes();
        if (bytes > kExaminedBytes && end > begin) break;
      }
      CAIRN_TRY(Examine(contents.step, std::span(chunks).subspan(begin, end - begin)));
      if (report_.bytes - committed_bytes < kCommitBytes) continue;
      CAIRN_TRY(Commit(contents.step));
      committed_bytes = report_.bytes;
    }
    CAIRN_TRY(Commit(contents.step));
    report_.steps = std::min(report_.steps, steps + 1);
    return {};
  }

  const AddStatisticsReport& report() const { return report_; }

 private:
  /// Statistics of the bytes with a digest, as elements of a type.
  struct Known {
    DType dtype;
    kv::Digest digest;
    kv::ChunkStatistics statistics;
  };

  std::optional<kv::ChunkStatistics> Find(const std::string& key, DType dtype,
                                          const kv::Digest& digest) const {
    const auto known = known_.find(key);
    if (known == known_.end()) return std::nullopt;
    for (const Known& one : known->second) {
      if (one.dtype == dtype && one.digest == digest) return one.statistics;
    }
    return std::nullopt;
  }

  Result<void> Examine(const kv::StepInfo& step, std::span<const UnknownChunk> chunks) {
    if (progress_ && !progress_(report_.bytes, total_bytes_)) {
      return Fail(ErrorCode::kCancelled, "stopped on request; what was committed remains");
    }
    std::vector<std::vector<std::byte>> bytes(chunks.size());
    std::vector<LoadRequest> requests;
    for (size_t i = 0; i < chunks.size(); ++i) {
      const auto& [tensor, chunk] = chunks[i];
      bytes[i].resize(chunk.length_bytes());
      requests.push_back(RowMajorRequest(tensor->fqn, tensor->dtype, chunk.box, bytes[i].data()));
    }
    CAIRN_TRY(store_.Examine(step, requests));
    std::vector<kv::ChunkStatistics> found(chunks.size());
    kv::ParallelFor(chunks.size(), [&](size_t i, size_t) {
      found[i] = StatisticsOf(chunks[i].tensor->dtype, bytes[i]);
    });
    for (size_t i = 0; i < chunks.size(); ++i) {
      const auto& [tensor, chunk] = chunks[i];
      const std::string key = kv::ChunkKey(tensor->fqn, chunk.box.offsets);
      found_[key] = found[i];
      known_[key].push_back({tensor->dtype, chunk.digest, found[i]});
      report_.bytes += chunk.length_bytes();
    }
    report_.chunks += chunks.size();
    return {};
  }

  /// Commits what was found of a step.
  Result<void> Commit(const kv::StepInfo& step) {
    if (found_.empty()) return {};
    CAIRN_TRY_ASSIGN(const bool is_written, kv::RecordStatistics(store_.kv(), step, found_));
    report_.steps += is_written ? 1 : 0;
    found_.clear();
    return {};
  }

  const CheckpointStore& store_;
  const Progress& progress_;
  kv::StatisticsOfChunks found_;  // of the current step, not committed yet
  std::unordered_map<std::string, std::vector<Known>> known_;  // of all steps, by key
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
  return adder.report();
}

}  // namespace cairn::core
