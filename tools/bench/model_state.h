#pragma once
/// A state dict of any size that looks like a transformer in training: bf16 weights, fp32 AdamW
/// moments; a few large embeddings, many matrices, many small vectors and scalars.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/state_dict/state_dict.h"
#include "core/tensor/tensor.h"

namespace cairn::tools::internal {

struct BenchTensor {
  std::string fqn;
  core::DType dtype;
  core::Shape shape;
  uint64_t nbytes = 0;
  uint64_t offset_bytes = 0;  // in the memory of ModelMemory, on 64 bytes as torch's allocator does
};

/// Tensors of `bytes` bytes in all, exactly. kInvalidArgument: less than 1 MiB.
Result<std::vector<BenchTensor>> PlanModel(uint64_t bytes);

/// The tensors' memory: private pages, all touched, so that a later measurement counts none of
/// them.
class ModelMemory {
 public:
  /// kResourceExhausted: there is not enough memory. The contents are zeros.
  static Result<ModelMemory> Allocate(std::vector<BenchTensor> tensors);
  ModelMemory(ModelMemory&& other) noexcept;
  ModelMemory& operator=(ModelMemory&&) = delete;
  ~ModelMemory();

  const std::vector<BenchTensor>& tensors() const { return tensors_; }
  std::span<std::byte> bytes_of(size_t tensor) const {
    return {memory_ + tensors_[tensor].offset_bytes, tensors_[tensor].nbytes};
  }

  /// Fills tensor i with bytes that do not compress and depend only on (i, `version`).
  void Fill(size_t tensor, uint64_t version) const;
  void FillAll(uint64_t version) const;
  /// The first tensor whose bytes are not those of Fill(i, version), or tensors().size().
  size_t FindMismatch(uint64_t version) const;
  /// All tensors, borrowed, under their FQNs.
  core::StateDict State() const;

 private:
  ModelMemory() = default;
  std::vector<BenchTensor> tensors_;
  std::byte* memory_ = nullptr;
  uint64_t memory_bytes_ = 0;
};

}  // namespace cairn::tools::internal
