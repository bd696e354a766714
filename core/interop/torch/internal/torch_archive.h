#pragma once
/// What torch.save writes: a zip archive with a pickle and the storages of its tensors.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/interop/archive/internal/pickle_reader.h"
#include "core/interop/archive/internal/zip_reader.h"
#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// "torch.float32" and the like.
std::optional<DType> FindTorchDType(std::string_view global);
/// The class of storages that torch names in the pickle of a tensor: "FloatStorage" for float32;
/// nothing for dtypes that have none, whose storages are untyped.
std::optional<std::string_view> TorchStorageName(DType dtype);

/// Ownership: move-only; borrows the archive's bytes. Threads: immutable.
class TorchArchive {
 public:
  /// Checks the directory and the checksum of the pickle, and parses that. kDataLoss: no such
  /// archive, or a damaged one. kUnimplemented: TorchScript, the format before torch 1.6,
  /// big-endian data, or as ZipReader and PickleTree.
  static Result<TorchArchive> Open(std::span<const std::byte> bytes);

  const PickleTree& pickle() const { return pickle_; }
  const ZipReader& zip() const { return zip_; }

  /// True for the calls by which torch makes tensors and parameters anew.
  bool IsTensor(PickleRef ref) const;

  struct Tensor {
    TensorView view;              // in the archive's bytes
    bool has_attributes = false;  // of Python, which the view has no room for
  };
  /// Requires IsTensor. kUnimplemented: a tensor that is no strided array of plain elements
  /// (sparse, quantized, nested, conjugated, on the meta device, a subclass). kDataLoss: it leads
  /// out of its storage.
  Result<Tensor> ReadTensor(PickleRef ref) const { return ReadTensor(ref, 0); }

 private:
  TorchArchive(ZipReader zip, PickleTree pickle, std::string folder)
      : zip_(std::move(zip)), pickle_(std::move(pickle)), folder_(std::move(folder)) {}

  struct Storage {
    std::optional<DType> dtype;  // nothing for an untyped one
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
  std::string folder_;  // of every member, with its "/"
};

}  // namespace cairn::core::internal
