#pragma once
/// The part of the DLPack 1.x C ABI that Cairn uses with torch, in the layout of its specification
/// (https://dmlc.github.io/dlpack/latest/c_api.html). The tensors are nanobind's dltensor.

#include <nanobind/ndarray.h>

#include <cstdint>

namespace cairn::python::dlpack {

using Tensor = nanobind::dlpack::dltensor;
using Device = nanobind::dlpack::device;

inline constexpr uint32_t kMajorVersion = 1;
inline constexpr int32_t kCpu = 1;
inline constexpr int32_t kCuda = 2;
/// Name of the capsule in the attribute __dlpack_c_exchange_api__ of a tensor type.
inline constexpr const char* kExchangeApiName = "dlpack_exchange_api";

struct Version {
  uint32_t major = kMajorVersion;
  uint32_t minor = 0;
};

/// Memory lent to a tensor. The borrower calls `deleter` once, on any thread.
struct ManagedTensor {
  Version version;
  void* context = nullptr;
  void (*deleter)(ManagedTensor* self) = nullptr;
  uint64_t flags = 0;
  Tensor tensor{};
};

/// The functions of a framework. All require the GIL, and return 0, or -1 with a Python exception
/// set.
struct ExchangeApi {
  Version version;
  const ExchangeApi* previous;
  int (*allocate)(Tensor*, ManagedTensor**, void*, void (*)(void*, const char*, const char*));
  int (*lend)(void* tensor, ManagedTensor** result);
  /// Creates a tensor object over `memory`, and takes ownership of `memory`.
  int (*wrap)(ManagedTensor* memory, void** result);
  /// Describes a tensor object. The result borrows the shape and strides of the object. The pointer
  /// to this function may be null.
  int (*describe)(void* tensor, Tensor* result);
  int (*work_stream)(int32_t, int32_t, void**);
};

}  // namespace cairn::python::dlpack
