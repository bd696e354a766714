#include "tools/bench/gpu_bench.h"

#include <fmt/format.h>

#include <utility>

#include "cuda/backend.h"
#include "tools/bench/measure.h"

namespace cairn::tools {
namespace {

struct Part {
  const char* name;
  Result<void> (*run)(GpuBench&);
};
constexpr Part kParts[] = {{"copies", BenchGpuCopies},
                           {"digest", BenchGpuDigest},
                           {"disk", BenchGpuDisk},
                           {"pages", BenchGpuPages}};

void Describe(const GpuBench& bench) {
  const cuda::GpuDescription& gpu = bench.plain->description();
  bench.report.AddFact("device", {{"name", gpu.name},
                                  {"device", bench.device},
                                  {"memory_bytes", gpu.memory_bytes},
                                  {"multiprocessors", gpu.multiprocessors},
                                  {"driver_cuda", gpu.driver_cuda},
                                  {"runtime_cuda", gpu.runtime_cuda}});
}

}  // namespace

Result<std::unique_ptr<LockedMemory>> LockedMemory::Make(core::DeviceBackend* backend,
                                                         uint64_t bytes) {
  CAIRN_TRY_ASSIGN(ModelMemory memory,
                   ModelMemory::Allocate({{"host", core::DType::kUInt8, {bytes}, bytes, 0}}));
  CAIRN_TRY(backend->Pin(memory.bytes_of(0)));
  return std::unique_ptr<LockedMemory>(new LockedMemory(backend, std::move(memory)));
}

LockedMemory::~LockedMemory() { backend_->Unpin(memory_.bytes_of(0)); }

Result<double> TimeOf(const std::function<Result<void>()>& operation) {
  const auto begin = std::chrono::steady_clock::now();
  CAIRN_TRY(operation());
  return SecondsSince(begin);
}

BenchRow GpuRow(const std::string& what, uint64_t run, uint64_t bytes, double seconds) {
  BenchRow row{.what = what, .run = run, .bytes = bytes};
  row.measured.seconds = seconds;
  row.in_this_process = false;  // neither processor time nor memory was measured
  return row;
}

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

Result<void> BenchGpu(const BenchOptions& options, BenchReport& report) {
  cuda::Register();
  GpuBench bench{.options = options, .report = report, .device = options.device};
  auto backend = cuda::FindBackend();
  if (!backend) {
    return Fail(
        backend.error().code,
        fmt::format("no GPU can be measured here: {}; use a machine with a GPU and its driver",
                    backend.error().message));
  }
  bench.backend = *backend;
  CAIRN_TRY_ASSIGN(bench.plain, cuda::PlainGpu::Open(options.device));
  Describe(bench);
  for (const Part& part : kParts) {
    if (options.part.empty() || options.part == part.name) CAIRN_TRY(part.run(bench));
  }
  return {};
}

}  // namespace cairn::tools
