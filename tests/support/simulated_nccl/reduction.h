#pragma once
/// Sizes of NCCL's data types, and sums, minima, maxima and products of them.

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cairn::simulated_nccl {

/// Returns the size of an element in bytes; 0 for an unknown type.
inline uint64_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

template <typename T>
void ReduceAs(ncclRedOp_t operation, std::byte* sum, const std::byte* value, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    T a;
    T b;
    std::memcpy(&a, sum + i * sizeof(T), sizeof(T));
    std::memcpy(&b, value + i * sizeof(T), sizeof(T));
    if (operation == ncclSum) a = static_cast<T>(a + b);
    if (operation == ncclProd) a = static_cast<T>(a * b);
    if (operation == ncclMax) a = std::max(a, b);
    if (operation == ncclMin) a = std::min(a, b);
    std::memcpy(sum + i * sizeof(T), &a, sizeof(T));
  }
}

/// Sets sum[i] = operation(sum[i], value[i]). Returns false for types and operations that are not
/// simulated: floats of less than 4 bytes, averages.
inline bool Reduce(ncclDataType_t type, ncclRedOp_t operation, std::byte* sum,
                   const std::byte* value, uint64_t count) {
  if (operation < ncclSum || operation > ncclMin) return false;
  switch (type) {
    case ncclInt8:
      ReduceAs<int8_t>(operation, sum, value, count);
      return true;
    case ncclUint8:
      ReduceAs<uint8_t>(operation, sum, value, count);
      return true;
    case ncclInt32:
      ReduceAs<int32_t>(operation, sum, value, count);
      return true;
    case ncclUint32:
      ReduceAs<uint32_t>(operation, sum, value, count);
      return true;
    case ncclInt64:
      ReduceAs<int64_t>(operation, sum, value, count);
      return true;
    case ncclUint64:
      ReduceAs<uint64_t>(operation, sum, value, count);
      return true;
    case ncclFloat32:
      ReduceAs<float>(operation, sum, value, count);
      return true;
    case ncclFloat64:
      ReduceAs<double>(operation, sum, value, count);
      return true;
    default:
      return false;
  }
}

}  // namespace cairn::simulated_nccl
