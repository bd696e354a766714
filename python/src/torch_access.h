#pragma once
/// Access to torch tensors without one Python call per property. torch is not linked but looked up
/// in the process; the Python side handles what it lacks or refuses.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/tensor/tensor.h"

namespace cairn::python {

namespace nb = nanobind;

/// The part of the DLPack 1.x C ABI that Cairn uses with torch, in the layout of its specification
/// (https://dmlc.github.io/dlpack/latest/c_api.html). The tensors are nanobind's dltensor.
namespace dlpack {

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

}  // namespace dlpack

/// The strided memory of a tensor object. Strides are in elements.
///
/// The tensor object does not keep the memory alive: any thread may give it another storage
/// (`set_`, `.data = `). The storage does, except for `storage.resize_`, which frees its memory
/// although others refer to it; that can only be found afterwards (HasMoved).
struct TensorMemory {
  core::DType dtype = core::DType::kUnknown;
  std::span<const int64_t> shape;
  std::span<const int64_t> strides;
  std::byte* data = nullptr;
  int device = core::kHostDevice;
  nb::object storage;  // keeps `data` alive

  bool is_contiguous() const;
};

/// A tensor whose memory a save or load uses.
struct BorrowedTensor {
  uint32_t leaf = 0;  // index of the state's leaf
  nb::object tensor;
  nb::object storage;  // the one that it had then
  const std::byte* data = nullptr;
};

/// Threads: any that holds the GIL. Cheap to create: one per save or load.
class TorchAccess {
 public:
  /// The memory that the user can access.
  enum class Reach { kHost, kDevices };

  /// Recognizes no tensors if the process has not imported torch, because none can exist then.
  explicit TorchAccess(Reach reach = Reach::kHost);

  /// Returns true for torch.Size, but not for subclasses.
  bool IsSize(nb::handle value) const;

  /// Returns true for tensors of a subclass of torch.Tensor other than Parameter.
  bool IsTensorSubclass(nb::handle value) const;

  /// Returns the memory of a torch.Tensor or Parameter (not of subclasses) that is simply strided
  /// memory of this host or, with kDevices, of a device that core can access. Returns nothing for
  /// all others, which the Python side converts or refuses: other devices and layouts, freed
  /// storage, complex numbers (which may be conjugated lazily), lazy negation, and dtypes without a
  /// code.
  std::optional<TensorMemory> FindMemory(nb::handle value) const;

  /// Returns true if FindMemory, should it find memory of this host, would find `view`. Only
  /// FindMemory finds out whether the numbers are lazily negated or are those of a shard.
  bool HasView(nb::handle value, const core::TensorView& view) const;
  /// Where the memory of a tensor begins; null for objects that are not plain tensors.
  const std::byte* FindData(nb::handle value) const;
  /// Returns true if the storage of a borrowed tensor has got other memory since.
  bool HasMoved(const BorrowedTensor& borrowed) const;

  /// Returns true if Wrap supports `dtype`.
  bool CanWrap(core::DType dtype) const;
  /// Returns a row-major torch.Tensor over `memory`, which the tensor keeps alive. Its storage has
  /// the size of the tensor. Requires CanWrap(dtype), and memory for that many elements.
  nb::object Wrap(std::shared_ptr<std::byte> memory, core::DType dtype,
                  std::span<const uint64_t> shape) const;

 private:
  bool IsPlainTensor(nb::handle value) const;
  // Returns the memory of a plain tensor without its storage.
  std::optional<TensorMemory> Describe(nb::handle tensor_object) const;
  // `wire`: the description of the dtype by DLPack. kUnknown: it has no code.
  core::DType DTypeOf(nb::handle tensor, const nb::dlpack::dtype& wire) const;
  bool IsNegated(nb::handle tensor) const;
  std::optional<int> ReachedDevice(const dlpack::Device& device) const;

  Reach reach_;
  mutable std::optional<bool> has_backend_;  // set when the first tensor on a device is found
  mutable bool has_failed_ = false;          // whether torch has failed to describe a tensor
  nb::object tensor_type_;
  nb::object parameter_type_;
  nb::object size_type_;
  nb::dict codes_;  // torch.dtype -> code of Cairn
  const dlpack::ExchangeApi* api_ = nullptr;
  nb::str dtype_name_;
  nb::str storage_name_;
  nb::str is_neg_name_;
  nb::str global_shape_name_;
};

}  // namespace cairn::python
