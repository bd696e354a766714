#pragma once
/// Reads what torch.save writes: a zip archive with a pickle and the storages of its tensors.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/interop/archive/internal/pickle_tree.h"
#include "core/interop/archive/internal/zip_reader.h"
#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// Returns the dtype of a global such as "torch.float32", or nothing if it is not a dtype.
std::optional<DType> FindTorchDType(std::string_view global);
/// Returns the class of storages that torch names in the pickle of a tensor, for example
/// "FloatStorage" for float32, or nothing for a dtype whose storages are untyped.
std::optional<std::string_view> TorchStorageName(DType dtype);

/// Ownership: move-only; borrows the archive's bytes. Threads: immutable.
class TorchArchive {
 public:
  /// Reads the directory and the pickle, and verifies the checksum of the pickle. kDataLoss: it is
  /// not such an archive, or a damaged one. kUnimplemented: TorchScript, the format before torch
  /// 1.6, big-endian data, compressed or encrypted members, unsupported opcodes.
  /// kResourceExhausted: the pickle exceeds the limits of ReadPickle.
  static Result<TorchArchive> Open(std::span<const std::byte> bytes);

  const PickleTree& pickle() const { return pickle_; }
  const ZipReader& zip() const { return zip_; }

  /// True for the calls with which torch recreates tensors and parameters.
  bool IsTensor(PickleRef ref) const;

  struct Tensor {
    TensorView view;              // in the archive's bytes
    bool has_attributes = false;  // Python attributes, which the view cannot hold
    /// Bytes by which the tensor is longer than its storage: a view that was expanded repeats
    /// elements, and a small file can describe a tensor of any length.
    uint64_t repeated_bytes = 0;
  };
  /// Requires IsTensor(ref). kUnimplemented: the tensor is not a strided array of plain elements
  /// (it is sparse, quantized, nested, conjugated, on the meta device, or of a subclass).
  /// kDataLoss: it extends beyond its storage.
  Result<Tensor> ReadTensor(PickleRef ref) const { return ReadTensor(ref, 0); }

 private:
  TorchArchive(ZipReader zip, PickleTree pickle, std::string folder)
      : zip_(std::move(zip)), pickle_(std::move(pickle)), folder_(std::move(folder)) {}

  struct Storage {
    std::optional<DType> dtype;  // nothing if it is untyped
    std::span<const std::byte> bytes;
  };
  Result<Tensor> ReadTensor(PickleRef ref, int depth) const;
  Result<Tensor> ReadStrided(std::string_view function, std::span<const PickleRef> arguments) const;
  Result<Storage> ReadStorage(PickleRef ref) const;
  Result<std::vector<uint64_t>> ReadExtents(PickleRef ref) const;
  Result<void> CheckPlain(PickleRef metadata) const;
  std::span<const PickleRef> Arguments(PickleRef object) const;
  bool IsText(PickleRef ref, std::string_view text) const;

  ZipReader zip_;
  PickleTree pickle_;
  std::string folder_;  // the prefix of every member's name, including its "/"
};

/// The budget of bytes by which all tensors of an import may be longer than their storages. It
/// bounds the time and space that a small file can cost. Threads: one.
class RepeatedBytes {
 public:
  /// kResourceExhausted: the budget is spent.
  Result<void> Spend(const TorchArchive::Tensor& tensor);

 private:
  uint64_t left_bytes_ = uint64_t{1} << 30;
};

}  // namespace cairn::core::internal
