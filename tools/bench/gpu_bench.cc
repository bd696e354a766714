#include "tools/bench/gpu_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "cuda/backend.h"
#include "kv/io/worker_pool.h"
#include "tools/bench/measure.h"
#include "tools/common/quantities.h"

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

/// Returns tensors whose total size is exactly `bytes`, and which resemble a transformer in
/// training: bf16 weights and fp32 AdamW moments; a few large embeddings, many matrices, many small
/// vectors and scalars. kInvalidArgument: less than 1 MiB.
Result<std::vector<BenchTensor>> PlanModel(uint64_t bytes) {
  if (bytes < 1 << 20) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--bytes {} is too small for a model; give at least 1MiB", bytes));
  }
  std::vector<BenchTensor> tensors;
  uint64_t planned_bytes = 0;
  uint64_t offset_bytes = 0;
  const auto add = [&](std::string fqn, core::DType dtype, const core::Shape& shape) {
    uint64_t nbytes = schema::ElementBytes(dtype);
    for (const uint64_t size : shape) nbytes *= size;
    tensors.push_back({std::move(fqn), dtype, shape, nbytes, offset_bytes});
    planned_bytes += nbytes;
    offset_bytes += (nbytes + 63) / 64 * 64;
  };
  const auto add_parameter = [&](const std::string& name, const core::Shape& shape) {
    add("model." + name, core::DType::kBFloat16, shape);
    add("optimizer." + name + ".exp_avg", core::DType::kFloat32, shape);
    add("optimizer." + name + ".exp_avg_sq", core::DType::kFloat32, shape);
    add("optimizer." + name + ".step", core::DType::kFloat32, {});
  };
  // 12 w^2 parameters per layer, and 32 w^2 in two embeddings, of 10 bytes each. The factor 0.97
  // keeps the model below `bytes` despite rounding and small tensors.
  const uint64_t layers = std::clamp<uint64_t>(bytes >> 24, 2, 24);
  const double parameters = 0.97 * static_cast<double>(bytes) / (2 + 4 + 4);
  const double exact_width = std::sqrt(parameters / static_cast<double>(12 * layers + 32));
  const uint64_t width = std::max<uint64_t>(16, static_cast<uint64_t>(exact_width) / 16 * 16);
  add_parameter("embed.weight", {16 * width, width});
  add_parameter("lm_head.weight", {16 * width, width});
  for (uint64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    for (const char* name : {"attn.wq", "attn.wk", "attn.wv", "attn.wo"}) {
      add_parameter(fmt::format("{}{}.weight", prefix, name), {width, width});
    }
    add_parameter(prefix + "mlp.up.weight", {4 * width, width});
    add_parameter(prefix + "mlp.down.weight", {width, 4 * width});
    add_parameter(prefix + "mlp.up.bias", {4 * width});
    for (const char* name : {"attn_norm.weight", "mlp_norm.weight", "mlp.down.bias"}) {
      add_parameter(prefix + name, {width});
    }
    for (const char* name : {"q_norm", "k_norm"}) {
      add_parameter(fmt::format("{}attn.{}.weight", prefix, name), {64});
    }
  }
  add_parameter("norm.weight", {width});
  if (planned_bytes > bytes) {
    return Fail(ErrorCode::kInternal, fmt::format("no model of {} bytes can be planned", bytes));
  }
  if (planned_bytes < bytes) add("rest", core::DType::kUInt8, {bytes - planned_bytes});
  return tensors;
}

/// Fills memory with incompressible bytes, so that misplaced pages are detected.
void FillRandomly(std::span<std::byte> memory) {
  constexpr size_t kPieceBytes = 4 << 20;
  const size_t pieces = (memory.size() + kPieceBytes - 1) / kPieceBytes;
  kv::WorkerPool(kv::WorkerThreads()).Run(pieces, [&](size_t i, size_t) {
    std::mt19937_64 random(i);
    const size_t end = std::min(memory.size(), (i + 1) * kPieceBytes);
    for (size_t at = i * kPieceBytes; at < end; at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(memory.data() + at, &word, std::min(sizeof(word), end - at));
    }
  });
}

}  // namespace

Result<LockedMemory> LockedMemory::Make(core::DeviceBackend* backend, uint64_t bytes) {
  constexpr uint64_t kPageBytes = 4096;
  const uint64_t allocated_bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(kPageBytes, allocated_bytes)), &std::free);
  if (memory == nullptr) {
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("cannot allocate {} of memory; give fewer --bytes", HumanBytes(bytes)));
  }
  CAIRN_TRY(backend->Pin({memory.get(), bytes}));
  const auto unlock = [backend, bytes](std::byte* locked) {
    backend->Unpin({locked, bytes});
    std::free(locked);
  };
  return LockedMemory{.memory = {memory.release(), unlock}, .length_bytes = bytes};
}

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
  const uint64_t length_bytes = last.offset_bytes + last.nbytes;
  CAIRN_TRY_ASSIGN(model.memory_, bench.backend->Allocate(bench.device, length_bytes));
  CAIRN_TRY_ASSIGN(model.queue_, bench.backend->OpenQueue(bench.device));
  CAIRN_TRY_ASSIGN(const auto host, LockedMemory::Make(bench.backend, length_bytes));
  FillRandomly(host.bytes());
  CAIRN_TRY(bench.plain->CopyIn(host.bytes(), model.data()));
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
