#include "core/inspect/stored_statistics.h"

#include "core/step/internal/combined_statistics.h"
#include "core/step/internal/lookup.h"
#include "schema/dtype.h"

namespace cairn::core {
namespace internal {

namespace {

/// One tensor whose chunks are added one by one.
struct CountedValues {
  CombinedStatistics values;
  uint64_t count = 0;
  bool is_complete = true;

  void Add(DType dtype, const ChunkInfo& chunk) {
    is_complete &= chunk.statistics.has_value();
    if (!chunk.statistics) return;
    uint64_t chunk_count = chunk.length_bytes() / schema::ElementBytes(dtype);
    if (dtype == DType::kFloat4E2M1FNx2) chunk_count *= 2;
    count += chunk_count;
    // A damaged or hostile record may state more NaNs than there are values.
    const uint64_t others = chunk.statistics->nans + chunk.statistics->infs;
    const bool has_mean = others < chunk_count && std::isfinite(chunk.statistics->mean);
    values.Add(*chunk.statistics, has_mean ? static_cast<double>(chunk_count - others) : 0);
  }
};

}  // namespace
}  // namespace internal

Result<std::vector<std::optional<StoredStatistics>>> FindStatistics(
    const kv::Store& store, const kv::StepInfo& step, std::span<const TensorInfo> tensors) {
  std::vector<internal::CountedValues> combined;
  const auto add_all = [&](const internal::StepView& view) {
    combined.assign(tensors.size(), {});
    return internal::ForEachChunkOf(view, tensors, [&](size_t i, ChunkInfo&& chunk) {
      combined[i].Add(tensors[i].dtype, chunk);
      return Result<void>();
    });
  };
  CAIRN_TRY(internal::WithStep(store, step, add_all));
  std::vector<std::optional<StoredStatistics>> found(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].alias_of || !combined[i].is_complete || combined[i].count == 0) continue;
    found[i] = StoredStatistics{combined[i].values.sum, combined[i].count};
  }
  return found;
}

}  // namespace cairn::core
