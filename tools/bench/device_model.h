#pragma once
/// A model in device memory.

#include <memory>
#include <vector>

#include "core/checkpoint_store.h"
#include "core/device/device.h"
#include "tools/bench/gpu_bench.h"
#include "tools/bench/model_state.h"
#include "tools/bench/saved_model.h"

namespace cairn::tools {

/// A model in device memory. Ownership: owns the memory.
class DeviceModel {
 public:
  static Result<DeviceModel> Make(GpuBench& bench);

  std::byte* data() const { return memory_->data(); }
  uint64_t length_bytes() const { return memory_->length_bytes(); }
  const std::vector<BenchTensor>& tensors() const { return tensors_; }

  core::TensorTarget TargetOf(size_t i) const {
    return {tensors_[i].dtype, tensors_[i].shape, {}, data() + tensors_[i].offset_bytes, device_};
  }
  core::StateDict State() const;
  /// Requests that load every tensor into this memory.
  std::vector<core::LoadRequest> Requests() const;
  /// Page digests of all tensors, in their order.
  Result<std::vector<uint64_t>> PageDigests() const;

 private:
  int device_ = 0;
  std::vector<BenchTensor> tensors_;
  std::unique_ptr<core::DeviceMemory> memory_;
  std::shared_ptr<core::DeviceQueue> queue_;  // a shared_ptr for its deleter
};

Result<StorePointer> OpenStore(const ScratchStore& scratch, kv::OpenMode mode);

/// Options of a save that waits for the training stream of the bench.
core::SaveOptions OptionsOf(const GpuBench& bench, bool incremental);

}  // namespace cairn::tools
