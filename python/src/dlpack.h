#pragma once
/// The part of the DLPack 1.x C ABI that we speak with torch, as its specification lays it out
/// (https://dmlc.github.io/dlpack/latest/c_api.html). Tensors themselves are nanobind's dltensor.

#include <nanobind/ndarray.h>

#include <cstdint>

namespace cairn::python::dlpack {

using Tensor = nanobind::dlpack::dltensor;
using Device = nanobind::dlpack::device;

inline constexpr uint32_t kMajorVersion = 1;
inline constexpr int32_t kCpu = 1;
inline constexpr int32_t kCuda = 2;
/// Name of the capsule that the attribute __dlpack_c_exchange_api__ of a tensor type holds.
inline constexpr const char* kExchangeApiName = "dlpack_exchange_api";

struct Version {
  uint32_t major = kMajorVersion;
  uint32_t minor = 0;
};

/// Memory lent to a tensor. Whoever takes it calls `deleter` once, on any thread.
struct ManagedTensor {
  Version version;
  void* context = nullptr;
  void (*deleter)(ManagedTensor* self) = nullptr;
  uint64_t flags = 0;
  Tensor tensor{};
};

/// A framework's functions; all need the GIL and return 0, or -1 with a Python exception set.
struct ExchangeApi {
  Version version;
  const ExchangeApi* previous;
  int (*allocate)(Tensor*, ManagedTensor**, void*, void (*)(void*, const char*, const char*));
  int (*lend)(void* tensor, ManagedTensor** result);
  /// A new tensor object over `memory`, which it takes.
  int (*wrap)(ManagedTensor* memory, void** result);
  /// Describes a tensor object. Shape and strides are those of the object: borrowed. May be null.
  int (*describe)(void* tensor, Tensor* result);
  int (*work_stream)(int32_t, int32_t, void**);
};

}  // namespace cairn::python::dlpack
