// A model in device memory.

#include "tools/bench/device_model.h"

#include <chrono>

#include "kv/base/options.h"

namespace cairn::tools {

Result<DeviceModel> DeviceModel::Make(GpuBench& bench) {
  DeviceModel model;
  model.device_ = bench.device;
  CAIRN_TRY_ASSIGN(model.tensors_, PlanModel(bench.options.bytes));
  const BenchTensor& last = model.tensors_.back();
  CAIRN_TRY_ASSIGN(model.memory_,
                   bench.backend->Allocate(bench.device, last.offset_bytes + last.nbytes));
  CAIRN_TRY_ASSIGN(model.queue_, bench.backend->OpenQueue(bench.device));
  // Bytes that differ from page to page, so that misplaced pages are detected.
  CAIRN_TRY_ASSIGN(const ModelMemory host, ModelMemory::Allocate(model.tensors_));
  host.FillAll(1);
  for (size_t i = 0; i < model.tensors_.size(); ++i) {
    CAIRN_TRY(model.queue_->CopyIn(host.bytes_of(i), model.TargetOf(i), 0));
  }
  CAIRN_TRY_ASSIGN(const auto mark, model.queue_->Flush());
  CAIRN_TRY(model.queue_->Await(mark));
  return model;
}

core::StateDict DeviceModel::State() const {
  core::StateDict state;
  auto root = state.root();
  for (const BenchTensor& tensor : tensors_) {
    root.Tensor(tensor.fqn, {.dtype = tensor.dtype,
                             .shape = tensor.shape,
                             .data = data() + tensor.offset_bytes,
                             .device = device_});
  }
  return state;
}

std::vector<core::LoadRequest> DeviceModel::Requests() const {
  std::vector<core::LoadRequest> requests;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    requests.push_back({tensors_[i].fqn, core::WholeBox(tensors_[i].shape), TargetOf(i)});
  }
  return requests;
}

Result<std::vector<uint64_t>> DeviceModel::PageDigests() const {
  std::vector<core::DigestJob> jobs;
  for (const BenchTensor& tensor : tensors_) {
    jobs.push_back({.source = {.dtype = core::DType::kUInt8,
                               .shape = {tensor.nbytes},
                               .data = data() + tensor.offset_bytes,
                               .device = device_},
                    .length_bytes = tensor.nbytes});
  }
  CAIRN_TRY_ASSIGN(const auto digests, queue_->Digest(jobs, nullptr));
  const core::DeviceQueue::PageRange all{.first = 0, .count = digests.page_digests->page_count()};
  return queue_->FetchPageDigests(*digests.page_digests, {&all, 1});
}

Result<StorePointer> OpenStore(const ScratchStore& scratch, kv::OpenMode mode) {
  kv::StoreOptions options;
  // Nobody reads the steps that a benchmark deletes, and their files would fill the disk.
  options.grace = std::chrono::milliseconds(0);
  return core::CheckpointStore::Open(scratch.path(), mode, options);
}

core::SaveOptions OptionsOf(const GpuBench& bench, bool incremental) {
  core::SaveOptions options;
  options.incremental = incremental;
  options.streams = {{.device = bench.device, .stream = bench.plain->training_stream()}};
  return options;
}

}  // namespace cairn::tools
