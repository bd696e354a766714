#include "core/tensor/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

namespace cairn::core {
namespace {

// StridedRegion computes byte offsets with signed 64-bit integers, which limits sizes.
constexpr uint64_t kMaxCount = std::numeric_limits<int64_t>::max();

/// By the code of the dtype; 0 for unknown ones. Every chunk record that is read needs one, and the
/// list of dtypes is long.
constexpr auto kElementBytes = [] {
  static_assert(sizeof(DType) == 1);
  std::array<uint8_t, 256> bytes{};
  for (const schema::DTypeInfo& info : schema::kDTypes) {
    bytes[static_cast<uint8_t>(info.dtype)] = info.storage_bits / 8;
  }
  return bytes;
}();

/// Returns the product of `first` and the sizes, or nothing if it exceeds `limit`.
std::optional<uint64_t> CountUpTo(uint64_t limit, uint64_t first, std::span<const uint64_t> sizes) {
  uint64_t count = first;
  bool is_above = false;
  for (const uint64_t size : sizes) {
    if (size == 0) return 0;
    is_above = is_above || __builtin_mul_overflow(count, size, &count) || count > limit;
  }
  return is_above ? std::nullopt : std::optional(count);
}

}  // namespace

bool HasNoElements(std::span<const uint64_t> sizes) {
  return std::ranges::find(sizes, uint64_t{0}) != sizes.end();
}

Result<uint64_t> ElementCount(std::span<const uint64_t> shape) {
  if (const auto count = CountUpTo(kMaxCount, 1, shape)) return *count;
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("shape [{}] has more elements than 2^63", fmt::join(shape, ", ")));
}

Result<uint64_t> TensorBytes(DType dtype, std::span<const uint64_t> shape) {
  const uint64_t element_bytes = kElementBytes[static_cast<uint8_t>(dtype)];
  if (element_bytes == 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("dtype code {} is unknown", static_cast<int>(dtype)));
  }
  if (const auto bytes = CountUpTo(kMaxCount, element_bytes, shape)) return *bytes;
  CAIRN_TRY(ElementCount(shape));  // may have the error
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{} tensor of shape [{}] has more bytes than 2^63",
                          schema::DTypeName(dtype), fmt::join(shape, ", ")));
}

std::vector<uint64_t> RowMajorStrides(std::span<const uint64_t> shape) {
  std::vector<uint64_t> strides(shape.size());
  uint64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<uint64_t>(shape[d], 1);
  }
  return strides;
}

bool IsContiguous(std::span<const uint64_t> shape, std::span<const uint64_t> strides) {
  if (strides.empty()) return true;
  if (HasNoElements(shape)) return true;
  uint64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

Result<void> CheckStrides(std::span<const uint64_t> shape, std::span<const uint64_t> strides) {
  if (strides.empty() || strides.size() == shape.size()) return {};
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{} strides for {} dimensions", strides.size(), shape.size()));
}

std::optional<uint64_t> SpanBytes(uint64_t element_bytes, std::span<const uint64_t> shape,
                                  std::span<const uint64_t> strides) {
  uint64_t count = 1;  // elements in memory up to the last
  for (size_t d = 0; d < shape.size(); ++d) {
    uint64_t reach = 0;
    if (__builtin_mul_overflow(shape[d] - 1, strides[d], &reach) ||
        __builtin_add_overflow(count, reach, &count)) {
      return std::nullopt;
    }
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(count, element_bytes, &bytes)) return std::nullopt;
  return bytes;
}

Box WholeBox(std::span<const uint64_t> shape) {
  return Box{.offsets = std::vector<uint64_t>(shape.size(), 0),
             .sizes = Shape(shape.begin(), shape.end())};
}

bool BoxFits(const Box& box, std::span<const uint64_t> shape) {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offsets[d] > shape[d] || box.sizes[d] > shape[d] - box.offsets[d]) return false;
  }
  return true;
}

Box Intersect(const Box& a, const Box& b) {
  CAIRN_CHECK(a.offsets.size() == b.offsets.size());
  Box common;
  common.offsets.resize(a.offsets.size());
  common.sizes.resize(a.offsets.size());
  for (size_t d = 0; d < a.offsets.size(); ++d) {
    const uint64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const uint64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    common.offsets[d] = begin;
    common.sizes[d] = end > begin ? end - begin : 0;
  }
  return common;
}

}  // namespace cairn::core
