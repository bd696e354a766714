#pragma once
/// A state dict of any size that resembles a transformer in training: bf16 weights and fp32 AdamW
/// moments; a few large embeddings, many matrices, many small vectors and scalars. And stores that
/// have it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/state_dict/state_dict.h"
#include "core/tensor/tensor.h"
#include "tools/bench/verbs.h"

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

/// A directory below --dir that exists as long as this object.
class ScratchStore {
 public:
  /// Only chooses the name, DIRECTORY/cairn-bench-VERB-PID, or a longer one if that exists.
  ScratchStore(const std::string& directory, std::string_view verb);
  ~ScratchStore() { Remove(); }
  ScratchStore(const ScratchStore&) = delete;
  ScratchStore& operator=(const ScratchStore&) = delete;

  std::string path() const { return path_.string(); }
  /// Removes the directory. A failure is ignored: the user sees the directory, and the measurement
  /// is valid.
  void Remove() const;

 private:
  std::filesystem::path path_;
};

using StorePointer = std::unique_ptr<core::CheckpointStore>;

/// Opens a store whose deleted files are removed at once: nobody reads them, and they would fill
/// the disk.
Result<StorePointer> OpenStore(const ScratchStore& scratch, kv::OpenMode mode);

/// Returns memory for a model of `options.bytes` bytes, or for `options.tensors` equal tensors of
/// that size together. The contents are zeros.
Result<ModelMemory> MakeModel(const BenchOptions& options);

/// Saves a model as step 1 of a new store, closes the store, calls `use` with its directory and the
/// model, and removes the store.
Result<void> WithSavedModel(
    const BenchOptions& options, const char* verb,
    const std::function<Result<void>(const std::string&, ModelMemory&)>& use);

}  // namespace cairn::tools
