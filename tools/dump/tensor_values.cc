// Values of stored tensors, read for people: statistics, distributions, the elements that are
// shown, and how they differ between two steps.

#include "tools/dump/tensor_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/load/load_options.h"
#include "core/tensor/chunk_grid.h"
#include "tools/common/quantities.h"
#include "tools/dump/contents_json.h"

namespace cairn::tools {
namespace {

/// Tensors are read in parts of this size.
constexpr uint64_t kPartBytes = 16 << 20;
constexpr uint64_t kSampleBytes = 1 << 20;
constexpr size_t kMaxBins = 64;

/// Parts of a box that are read one after another.
struct Reading {
  core::ChunkGrid grid;
  uint64_t total = 0;  // parts of the grid
  uint64_t count = 0;  // parts that are read, at equal distances
  uint64_t bytes = 0;  // in these, about
};

Result<Reading> PlanReading(const TensorPart& part, uint64_t max_bytes) {
  const core::Shape& sizes = part.box.sizes;
  CAIRN_TRY_ASSIGN(const uint64_t bytes, core::TensorBytes(part.tensor.dtype, sizes));
  const bool is_sample = bytes > max_bytes;
  CAIRN_TRY_ASSIGN(auto grid, core::ChunkGrid::Make(part.tensor.dtype, sizes,
                                                    is_sample ? kSampleBytes : kPartBytes));
  const uint64_t total = grid.chunk_count();
  uint64_t count = total;
  if (is_sample) count = std::min(total, std::max<uint64_t>(1, max_bytes / kSampleBytes));
  return Reading{.grid = std::move(grid),
                 .total = total,
                 .count = count,
                 .bytes = is_sample ? count * kSampleBytes : bytes};
}

Result<void> LoadBox(const TensorPart& part, const core::Box& box, std::span<std::byte> target) {
  core::Box shifted = box;
  for (size_t d = 0; d < box.offsets.size(); ++d) shifted.offsets[d] += part.box.offsets[d];
  const auto request =
      core::RowMajorRequest(part.tensor.fqn, part.tensor.dtype, std::move(shifted), target.data());
  CAIRN_TRY(part.store->Load(part.step, {&request, 1}));
  return {};
}

/// Calls `visit` with the elements of one part after another.
Result<void> Read(const TensorPart& part, const Reading& reading, const core::Progress& progress,
                  const std::function<void(std::span<const std::byte>)>& visit) {
  std::vector<std::byte> bytes;
  uint64_t done_bytes = 0;
  for (uint64_t i = 0; i < reading.count; ++i) {
    if (progress && !progress(done_bytes, reading.bytes)) {
      return Fail(ErrorCode::kCancelled, "stopped on request");
    }
    const uint64_t at = i * reading.total / reading.count;
    bytes.resize(reading.grid.length_bytes(at));
    CAIRN_TRY(LoadBox(part, reading.grid.chunk(at), bytes));
    done_bytes += bytes.size();
    visit(bytes);
  }
  return {};
}

Result<core::Statistics> Measure(const TensorPart& part, const Reading& reading,
                                 const core::Progress& progress, uint64_t* read_bytes) {
  core::StatisticsAccumulator accumulator(part.tensor.dtype);
  CAIRN_TRY(Read(part, reading, progress, [&](std::span<const std::byte> bytes) {
    accumulator.Add(bytes);
    if (read_bytes != nullptr) *read_bytes += bytes.size();
  }));
  return accumulator.Finish();
}

Json BoundJson(core::DType dtype, const std::optional<double>& bound, const std::string& text) {
  if (!bound) return nullptr;
  const bool is_integer = dtype >= core::DType::kUInt8 && dtype <= core::DType::kUInt64;
  return is_integer ? Json::parse(text) : FloatJson(*bound);
}

}  // namespace

Result<bool> CanReadAll(const TensorPart& part) {
  core::TensorInfo shown = part.tensor;
  shown.shape = part.box.sizes;
  CAIRN_TRY_ASSIGN(shown.nbytes, core::TensorBytes(shown.dtype, shown.shape));
  return core::CheckRepeats({&shown, 1}).has_value();
}

Result<core::Statistics> MeasureStatistics(const TensorPart& part, const core::Progress& progress) {
  CAIRN_TRY_ASSIGN(const Reading reading, PlanReading(part, UINT64_MAX));
  return Measure(part, reading, progress, nullptr);
}

Result<Distribution> MeasureDistribution(const TensorPart& part, uint64_t max_bytes,
                                         const core::Progress& progress) {
  Distribution result;
  CAIRN_TRY_ASSIGN(result.elements, core::ElementCount(part.box.sizes));
  CAIRN_TRY_ASSIGN(const Reading reading, PlanReading(part, max_bytes));
  uint64_t read_bytes = 0;
  CAIRN_TRY_ASSIGN(result.statistics, Measure(part, reading, progress, &read_bytes));
  result.read_elements =
      read_bytes / std::max<uint64_t>(1, schema::ElementBytes(part.tensor.dtype));
  const auto& [low, high] = std::pair(result.statistics.finite_min, result.statistics.finite_max);
  if (!low || !high) return result;
  core::HistogramAccumulator accumulator(part.tensor.dtype, *low, *high, kMaxBins);
  CAIRN_TRY(Read(part, reading, progress,
                 [&](std::span<const std::byte> bytes) { accumulator.Add(bytes); }));
  result.histogram = accumulator.histogram();
  return result;
}

Result<std::vector<std::byte>> LoadShown(const TensorPart& part, const ArrayLayout& layout) {
  const uint64_t element_bytes = schema::ElementBytes(part.tensor.dtype);
  std::vector<std::byte> cells(layout.cell_count() * element_bytes);
  std::vector<core::LoadRequest> requests;
  for (const ArrayLayout::EdgeBox& edge : layout.edge_boxes()) {
    core::Box box{edge.source_offsets, edge.sizes};
    for (size_t d = 0; d < box.offsets.size(); ++d) box.offsets[d] += part.box.offsets[d];
    requests.push_back({part.tensor.fqn,
                        std::move(box),
                        {part.tensor.dtype, edge.sizes, layout.strides(),
                         cells.data() + edge.cell_offset * element_bytes}});
  }
  CAIRN_TRY(part.store->Load(part.step, requests));
  return cells;
}

Json StatisticsJson(core::DType dtype, const core::Statistics& statistics) {
  const auto number = [](const std::optional<double>& value) {
    return value ? FloatJson(*value) : Json(nullptr);
  };
  return {{"count", statistics.count},
          {"zeros", statistics.zeros},
          {"nan", statistics.nans},
          {"inf", statistics.infs},
          {"min", BoundJson(dtype, statistics.min, statistics.min_text)},
          {"max", BoundJson(dtype, statistics.max, statistics.max_text)},
          {"mean", number(statistics.mean)},
          {"std", number(statistics.std_deviation)}};
}

Result<ValueDifference> CompareTensor(const core::CheckpointStore& store, const kv::StepInfo& a,
                                      const kv::StepInfo& b, const std::string& fqn,
                                      const core::Progress& progress) {
  CAIRN_TRY_ASSIGN(const auto compared, core::CompareValues(store.kv(), a, b, {&fqn, 1}, progress));
  if (compared.front()) return *compared.front();
  return Fail(Error{.code = ErrorCode::kInvalidArgument,
                    .message = "dtype or shape differ, so the values cannot be compared",
                    .key = fqn});
}

Json DifferenceJson(const ValueDifference& difference) {
  Json json = {{"elements", difference.elements},
               {"differing_elements", difference.differing_elements}};
  if (difference.numeric) {
    json["largest_absolute_difference"] = difference.largest_absolute;
    json["not_comparable_elements"] = difference.not_comparable;
  }
  return json;
}

std::string DifferenceText(const ValueDifference& difference) {
  std::string text =
      fmt::format("{} of elements", Percent(difference.differing_elements, difference.elements));
  if (difference.numeric) text += fmt::format(", by up to {:.4g}", difference.largest_absolute);
  if (difference.not_comparable > 0) {
    text += fmt::format(", {} NaN or Inf", GroupedCount(difference.not_comparable));
  }
  return text;
}

}  // namespace cairn::tools
