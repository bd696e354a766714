#pragma once
/// A state dict of any size that resembles a transformer in training: bf16 weights and fp32 AdamW
/// moments; a few large embeddings, many matrices, many small vectors and scalars.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/state_dict/state_dict.h"
#include "core/tensor/tensor.h"

namespace cairn::tools {

struct BenchTensor {
  std::string fqn;
  core::DType dtype;
  core::Shape shape;
  uint64_t nbytes = 0;
  uint64_t offset_bytes = 0;  // into ModelMemory; a multiple of 64, as in torch's allocator
};

/// Returns tensors whose total size is exactly `bytes`. kInvalidArgument: less than 1 MiB.
Result<std::vector<BenchTensor>> PlanModel(uint64_t bytes);

/// Returns `count` tensors of equal size, `bytes` together or slightly less. kInvalidArgument: less
/// than 4 bytes per tensor.
Result<std::vector<BenchTensor>> PlanEqualTensors(uint64_t bytes, uint64_t count);

/// The memory of the tensors: private pages that are all resident, so that a later measurement does
/// not count them.
class ModelMemory {
 public:
  /// The contents are zeros. kResourceExhausted: there is not enough memory.
  static Result<ModelMemory> Allocate(std::vector<BenchTensor> tensors);
  ModelMemory(ModelMemory&& other) noexcept;
  ModelMemory& operator=(ModelMemory&&) = delete;
  ~ModelMemory();

  const std::vector<BenchTensor>& tensors() const { return tensors_; }
  std::span<std::byte> bytes_of(size_t tensor) const {
    return {memory_ + tensors_[tensor].offset_bytes, tensors_[tensor].nbytes};
  }

  /// Everything, including the gaps that align the tensors.
  std::span<const std::byte> bytes() const { return {memory_, memory_bytes_}; }

  /// Fills a tensor with incompressible bytes that depend only on its index and on `version`.
  void Fill(size_t tensor, uint64_t version) const;
  void FillAll(uint64_t version) const;
  /// Returns the first tensor whose bytes differ from Fill(i, version), or tensors().size().
  size_t FindMismatch(uint64_t version) const;
  /// Returns a state dict that refers to the tensors under their FQNs.
  core::StateDict State() const;

 private:
  ModelMemory() = default;
  std::vector<BenchTensor> tensors_;
  std::byte* memory_ = nullptr;
  uint64_t memory_bytes_ = 0;
};

}  // namespace cairn::tools
