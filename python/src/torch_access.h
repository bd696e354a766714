#pragma once
/// torch tensors without a call of Python for each of their properties. torch is not linked: it is
/// found in the process, and what it lacks or refuses is left to the Python side.

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <span>

#include "core/tensor/tensor.h"
#include "python/src/dlpack.h"

namespace cairn::python {

namespace nb = nanobind;

/// Strided memory of a tensor object, borrowed from it. Strides are in elements.
struct TensorMemory {
  core::DType dtype = core::DType::kUnknown;
  std::span<const int64_t> shape;
  std::span<const int64_t> strides;
  std::byte* data = nullptr;
  int device = core::kHostDevice;

  bool is_contiguous() const;
};

/// Threads: any that holds the GIL. Cheap to make: one for each save or load.
class TorchAccess {
 public:
  /// Which memory the user can take.
  enum class Reach { kHost, kDevices };

  /// Knows no tensors if the process has not imported torch: then nobody can hold one.
  explicit TorchAccess(Reach reach = Reach::kHost);

  /// True for torch.Size, exactly.
  bool IsSize(nb::handle value) const;

  /// The memory of a torch.Tensor or Parameter (no subclass) that is nothing but strided memory of
  /// this host or, with kDevices, of a device that core reaches. Nothing for all else, to be taken,
  /// converted or refused by the Python side: other devices and layouts, freed storage, complex
  /// numbers (which may be conjugated lazily), lazy negation, dtypes that DLPack cannot say.
  std::optional<TensorMemory> FindMemory(nb::handle value) const;

  /// True if Wrap can make tensors of `dtype`.
  bool CanWrap(core::DType dtype) const;
  /// A row-major torch.Tensor over `memory`, which it holds; its storage is of its own size.
  /// Requires CanWrap, and memory for that many elements.
  nb::object Wrap(std::shared_ptr<std::byte> memory, core::DType dtype,
                  std::span<const uint64_t> shape) const;

 private:
  core::DType CodeOf(nb::handle tensor) const;
  bool IsNegated(nb::handle tensor) const;
  std::optional<int> ReachedDevice(const dlpack::Device& device) const;

  Reach reach_;
  mutable std::optional<bool> has_backend_;  // once a tensor on a device was met
  nb::object tensor_type_;
  nb::object parameter_type_;
  nb::object size_type_;
  nb::dict codes_;  // torch.dtype to Cairn's code
  const dlpack::ExchangeApi* api_ = nullptr;
  nb::str dtype_name_;
  nb::str is_neg_name_;
};

}  // namespace cairn::python
