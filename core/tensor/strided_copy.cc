#include "core/tensor/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace cairn::core {
namespace {

// The memory of a strided tensor as contiguous runs, in row-major order of its elements.
class ContiguousRuns {
 public:
  ContiguousRuns(std::span<const uint64_t> shape, std::span<const uint64_t> strides,
                 uint64_t element_bytes)
      : run_bytes_(element_bytes) {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == 1) continue;
      const uint64_t stride_bytes = strides[d] * element_bytes;
      if (!dims_.empty() && dims_.back().stride_bytes == stride_bytes * shape[d]) {
        dims_.back() = {dims_.back().size * shape[d], stride_bytes};
      } else {
        dims_.push_back({shape[d], stride_bytes});
      }
    }
    if (!dims_.empty() && dims_.back().stride_bytes == element_bytes) {
      run_bytes_ *= dims_.back().size;
      dims_.pop_back();
    }
  }

  // Calls `move(offset in memory, count)` for the contiguous ranges that row-major bytes
  // [begin_bytes, begin_bytes + length_bytes) consist of.
  template <typename Move>
  void ForEach(uint64_t begin_bytes, uint64_t length_bytes, const Move& move) const {
    std::vector<uint64_t> index(dims_.size());
    uint64_t position = begin_bytes / run_bytes_;
    uint64_t memory = 0;
    for (size_t d = dims_.size(); d-- > 0;) {
      index[d] = position % dims_[d].size;
      memory += index[d] * dims_[d].stride_bytes;
      position /= dims_[d].size;
    }
    uint64_t within = begin_bytes % run_bytes_;
    while (length_bytes > 0) {
      const uint64_t count = std::min(run_bytes_ - within, length_bytes);
      move(memory + within, count);
      length_bytes -= count;
      within = 0;
      for (size_t d = dims_.size(); d-- > 0;) {
        memory += dims_[d].stride_bytes;
        if (++index[d] < dims_[d].size) break;
        memory -= dims_[d].size * dims_[d].stride_bytes;
        index[d] = 0;
      }
    }
  }

 private:
  struct Dim {
    uint64_t size;
    uint64_t stride_bytes;
  };
  std::vector<Dim> dims_;
  uint64_t run_bytes_;
};

// memcpy with a size that the compiler knows: the runs of a transposed tensor have one element.
void CopyRun(std::byte* target, const std::byte* source, uint64_t count) {
  switch (count) {
    case 1:
      std::memcpy(target, source, 1);
      break;
    case 2:
      std::memcpy(target, source, 2);
      break;
    case 4:
      std::memcpy(target, source, 4);
      break;
    case 8:
      std::memcpy(target, source, 8);
      break;
    default:
      std::memcpy(target, source, count);
  }
}

}  // namespace

void GatherBytes(const TensorView& source, uint64_t begin_bytes, std::span<std::byte> target) {
  if (target.empty()) return;
  if (IsContiguous(source.shape, source.strides)) {
    std::memcpy(target.data(), source.data + begin_bytes, target.size());
    return;
  }
  std::byte* out = target.data();
  ContiguousRuns(source.shape, source.strides, schema::ElementBytes(source.dtype))
      .ForEach(begin_bytes, target.size(), [&](uint64_t memory, uint64_t count) {
        CopyRun(out, source.data + memory, count);
        out += count;
      });
}

void ScatterBytes(std::span<const std::byte> payload, const TensorTarget& target,
                  uint64_t begin_bytes) {
  if (payload.empty()) return;
  if (IsContiguous(target.shape, target.strides)) {
    std::memcpy(target.data + begin_bytes, payload.data(), payload.size());
    return;
  }
  const std::byte* in = payload.data();
  ContiguousRuns(target.shape, target.strides, schema::ElementBytes(target.dtype))
      .ForEach(begin_bytes, payload.size(), [&](uint64_t memory, uint64_t count) {
        CopyRun(target.data + memory, in, count);
        in += count;
      });
}

void CopyTensor(const TensorView& source, const TensorTarget& target) {
  CAIRN_CHECK(source.dtype == target.dtype && source.shape == target.shape);
  if (HasNoElements(source.shape)) return;
  const bool source_is_row_major = IsContiguous(source.shape, source.strides);
  const bool target_is_row_major = IsContiguous(target.shape, target.strides);
  if (source.data == target.data && source_is_row_major == target_is_row_major &&
      (source_is_row_major || source.strides == target.strides)) {
    return;  // source and target are the same tensor
  }
  const uint64_t length_bytes = *TensorBytes(source.dtype, source.shape);
  if (source_is_row_major) {
    ScatterBytes({source.data, length_bytes}, target, 0);
  } else if (target_is_row_major) {
    GatherBytes(source, 0, {target.data, length_bytes});
  } else {
    std::array<std::byte, 16 * 1024> block;  // fits into the L1 cache
    for (uint64_t at = 0; at < length_bytes; at += block.size()) {
      const auto bytes =
          std::span(block).first(std::min<uint64_t>(block.size(), length_bytes - at));
      GatherBytes(source, at, bytes);
      ScatterBytes(bytes, target, at);
    }
  }
}

}  // namespace cairn::core
