#include "core/inspect/internal/find_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/tensor/tensor.h"
#include "schema/dtype.h"

namespace cairn::core::internal {
namespace {

/// One tensor whose chunks are added one by one.
class Combination {
 public:
  explicit Combination(DType dtype) : dtype_(dtype) {}

  void Add(const ChunkInfo& chunk) {
    if (!chunk.statistics) {
      is_complete_ = false;
      return;
    }
    const kv::ChunkStatistics& part = *chunk.statistics;
    uint64_t count = chunk.length_bytes() / schema::ElementBytes(dtype_);
    if (dtype_ == DType::kFloat4E2M1FNx2) count *= 2;
    sum_.count += count;
    sum_.zeros += part.zeros;
    sum_.nans += part.nans;
    sum_.infs += part.infs;
    sum_.min = std::fmin(sum_.min, part.min);  // the other one if one is NaN
    sum_.max = std::fmax(sum_.max, part.max);
    // Part by part, because a sum of all values might be infinite. A damaged or hostile record may
    // state more NaNs than there are values.
    const uint64_t others = part.nans + part.infs;
    if (others >= count) return;
    const double finite = finite_ + static_cast<double>(count - others);
    mean_ = mean_ * (finite_ / finite) + part.mean * (static_cast<double>(count - others) / finite);
    finite_ = finite;
  }

  std::optional<StoredStatistics> Finish() const {
    if (!is_complete_ || sum_.count == 0) return std::nullopt;
    StoredStatistics statistics = sum_;
    statistics.mean = finite_ > 0 ? mean_ : kNone;
    return statistics;
  }

 private:
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  DType dtype_;
  bool is_complete_ = true;
  StoredStatistics sum_{.min = kNone, .max = kNone};
  double finite_ = 0;  // number of finite values
  double mean_ = 0;    // their mean
};

}  // namespace

Result<std::vector<std::optional<StoredStatistics>>> FindStatistics(
    const StepView& view, std::span<const TensorInfo> tensors) {
  std::vector<std::optional<StoredStatistics>> found(tensors.size());
  std::vector<TensorInfo> owners;
  std::vector<size_t> indices;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].alias_of) continue;
    owners.push_back(tensors[i]);
    indices.push_back(i);
  }
  std::vector<Combination> combined;
  for (const TensorInfo& owner : owners) combined.emplace_back(owner.dtype);
  CAIRN_TRY(ForEachChunkOf(view, owners, [&](size_t i, const ChunkInfo& chunk) -> Result<void> {
    combined[i].Add(chunk);
    return {};
  }));
  for (size_t i = 0; i < owners.size(); ++i) found[indices[i]] = combined[i].Finish();
  return found;
}

}  // namespace cairn::core::internal
