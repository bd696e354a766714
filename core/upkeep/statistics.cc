#include "core/upkeep/statistics.h"

#include "core/upkeep/payload_reader.h"

namespace cairn::core {

Result<Statistics> ComputeStatistics(const CheckpointStore& store, const kv::StepInfo& step,
                                     const TensorInfo& tensor) {
  StatisticsAccumulator accumulator(tensor.dtype);
  CAIRN_TRY(ReadRowMajor(store, step, {&tensor, 1},
                         [&](size_t, uint64_t, std::span<const std::byte> bytes) -> Result<void> {
                           accumulator.Add(bytes);
                           return {};
                         }));
  return accumulator.Finish();
}

}  // namespace cairn::core
