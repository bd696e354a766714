#include "tools/bench/model.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>

#include "kv/base/options.h"
#include "kv/io/worker_pool.h"
#include "tools/common/progress.h"
#include "tools/common/quantities.h"

namespace cairn::tools {
namespace {

using core::DType;
using core::Shape;

constexpr uint64_t kTensorAlignment = 64;
constexpr uint64_t kMinModelBytes = 1 << 20;
// A bf16 weight and two fp32 moments: the bytes that training keeps per parameter.
constexpr uint64_t kBytesPerParameter = 2 + 4 + 4;
constexpr uint64_t kMaxLayers = 24;

class Planner {
 public:
  /// Adds the weight, the AdamW moments and the step counter of a parameter.
  void AddParameter(const std::string& name, const Shape& shape) {
    Add("model." + name, DType::kBFloat16, shape);
    Add("optimizer." + name + ".exp_avg", DType::kFloat32, shape);
    Add("optimizer." + name + ".exp_avg_sq", DType::kFloat32, shape);
    Add("optimizer." + name + ".step", DType::kFloat32, {});
  }

  void Add(std::string fqn, DType dtype, const Shape& shape) {
    uint64_t nbytes = schema::ElementBytes(dtype);
    for (const uint64_t size : shape) nbytes *= size;
    tensors_.push_back({std::move(fqn), dtype, shape, nbytes, 0});
    bytes_ += nbytes;
  }

  uint64_t bytes() const { return bytes_; }
  std::vector<BenchTensor> Take() { return std::move(tensors_); }

 private:
  std::vector<BenchTensor> tensors_;
  uint64_t bytes_ = 0;
};

void AddLayer(Planner& planner, uint64_t layer, uint64_t width) {
  const std::string prefix = fmt::format("layers.{}.", layer);
  planner.AddParameter(prefix + "attn_norm.weight", {width});
  for (const char* name : {"wq", "wk", "wv", "wo"}) {
    planner.AddParameter(fmt::format("{}attn.{}.weight", prefix, name), {width, width});
  }
  planner.AddParameter(prefix + "attn.q_norm.weight", {64});
  planner.AddParameter(prefix + "attn.k_norm.weight", {64});
  planner.AddParameter(prefix + "mlp_norm.weight", {width});
  planner.AddParameter(prefix + "mlp.up.weight", {4 * width, width});
  planner.AddParameter(prefix + "mlp.up.bias", {4 * width});
  planner.AddParameter(prefix + "mlp.down.weight", {width, 4 * width});
  planner.AddParameter(prefix + "mlp.down.bias", {width});
}

uint64_t NextRandom(uint64_t& state) {
  // SplitMix64 (Steele, Lea, Flood 2014): fast, seeded by any number, passes BigCrush.
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

void FillBytes(std::span<std::byte> target, size_t tensor, uint64_t version) {
  uint64_t state = version * 0x100000000 + tensor;
  state = NextRandom(state);
  uint64_t at = 0;
  for (; at + 8 <= target.size(); at += 8) {
    const uint64_t word = NextRandom(state);
    std::memcpy(target.data() + at, &word, 8);
  }
  const uint64_t word = NextRandom(state);
  std::memcpy(target.data() + at, &word, target.size() - at);
}

/// Sorts the tensors by FQN and assigns their places in memory.
std::vector<BenchTensor> Placed(std::vector<BenchTensor> tensors) {
  std::ranges::sort(tensors, {}, &BenchTensor::fqn);
  uint64_t offset = 0;
  for (BenchTensor& tensor : tensors) {
    tensor.offset_bytes = offset;
    offset += (tensor.nbytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  }
  return tensors;
}

/// Returns `count` tensors of equal size, `bytes` together or slightly less. kInvalidArgument: less
/// than 4 bytes per tensor.
Result<std::vector<BenchTensor>> PlanEqualTensors(uint64_t bytes, uint64_t count) {
  const uint64_t elements = bytes / count / sizeof(float);
  if (elements == 0) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--bytes {} is too small for {} tensors; give more bytes", bytes, count));
  }
  Planner planner;
  for (uint64_t i = 0; i < count; ++i) {
    planner.Add(fmt::format("experts.{:06}.weight", i), DType::kFloat32, {elements});
  }
  return Placed(planner.Take());
}

}  // namespace

Result<std::vector<BenchTensor>> PlanModel(uint64_t bytes) {
  if (bytes < kMinModelBytes) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("--bytes {} is too small for a model; give at least 1MiB", bytes));
  }
  // Parameters: 12 w^2 per layer, and 32 w^2 in two embeddings of 16 w rows. The factor 0.97 keeps
  // the model below `bytes` despite rounding.
  const uint64_t layers = std::clamp<uint64_t>(bytes >> 24, 2, kMaxLayers);
  const double parameters = 0.97 * static_cast<double>(bytes) / kBytesPerParameter;
  const double width_exact = std::sqrt(parameters / static_cast<double>(12 * layers + 32));
  const uint64_t width = std::max<uint64_t>(16, static_cast<uint64_t>(width_exact) / 16 * 16);
  Planner planner;
  planner.AddParameter("embed.weight", {16 * width, width});
  planner.AddParameter("lm_head.weight", {16 * width, width});
  for (uint64_t layer = 0; layer < layers; ++layer) AddLayer(planner, layer, width);
  planner.AddParameter("norm.weight", {width});
  if (planner.bytes() > bytes) {
    return Fail(ErrorCode::kInternal, fmt::format("no model of {} bytes can be planned", bytes));
  }
  // The remaining bytes become rows of position embeddings and the state of a random generator.
  const uint64_t rows = (bytes - planner.bytes()) / (width * kBytesPerParameter + 4);
  if (rows > 1) planner.AddParameter("positions.weight", {rows - 1, width});
  const uint64_t remainder = bytes - planner.bytes();
  if (remainder > 0) planner.Add("rng.state", DType::kUInt8, {remainder});
  return Placed(planner.Take());
}

Result<ModelMemory> ModelMemory::Allocate(std::vector<BenchTensor> tensors) {
  ModelMemory model;
  model.memory_bytes_ = tensors.empty() ? 0 : tensors.back().offset_bytes + tensors.back().nbytes;
  model.tensors_ = std::move(tensors);
  void* memory = mmap(nullptr, std::max<uint64_t>(model.memory_bytes_, 1), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    Error error = SystemError(errno, fmt::format("allocating {} of memory for the tensors",
                                                 HumanBytes(model.memory_bytes_)));
    error.message += "; give fewer --bytes";
    return Fail(std::move(error));
  }
  model.memory_ = static_cast<std::byte*>(memory);
  return model;
}

ModelMemory::ModelMemory(ModelMemory&& other) noexcept
    : tensors_(std::move(other.tensors_)),
      memory_(std::exchange(other.memory_, nullptr)),
      memory_bytes_(other.memory_bytes_) {}

ModelMemory::~ModelMemory() {
  if (memory_ != nullptr) munmap(memory_, std::max<uint64_t>(memory_bytes_, 1));
}

void ModelMemory::Fill(size_t tensor, uint64_t version) const {
  FillBytes(bytes_of(tensor), tensor, version);
}

void ModelMemory::FillAll(uint64_t version) const {
  kv::WorkerPool(kv::WorkerThreads()).Run(tensors_.size(), [&](size_t i, size_t) {
    Fill(i, version);
  });
}

size_t ModelMemory::FindMismatch(uint64_t version) const {
  std::atomic<size_t> first = tensors_.size();
  kv::WorkerPool(kv::WorkerThreads()).Run(tensors_.size(), [&](size_t i, size_t) {
    std::vector<std::byte> expected(tensors_[i].nbytes);
    FillBytes(expected, i, version);
    if (std::memcmp(expected.data(), bytes_of(i).data(), expected.size()) == 0) return;
    size_t seen = first;
    while (i < seen && !first.compare_exchange_weak(seen, i)) {
    }
  });
  return first;
}

core::StateDict ModelMemory::State() const {
  core::StateDict state;
  auto root = state.root();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const BenchTensor& tensor = tensors_[i];
    root.Tensor(tensor.fqn, {tensor.dtype, tensor.shape, {}, bytes_of(i).data()});
  }
  return state;
}

ScratchStore::ScratchStore(const std::string& directory, std::string_view verb)
    : path_(std::filesystem::path(directory) / fmt::format("cairn-bench-{}-{}", verb, getpid())) {
  std::error_code ignored;
  while (std::filesystem::exists(path_, ignored)) path_ += "x";  // existing files are not ours
}

void ScratchStore::Remove() const {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Result<StorePointer> OpenStore(const ScratchStore& scratch, kv::OpenMode mode) {
  return core::CheckpointStore::Open(scratch.path(), mode, {.grace = std::chrono::milliseconds(0)});
}

Result<ModelMemory> MakeModel(const BenchOptions& options) {
  CAIRN_TRY_ASSIGN(auto tensors, options.tensors > 0
                                     ? PlanEqualTensors(options.bytes, options.tensors)
                                     : PlanModel(options.bytes));
  return ModelMemory::Allocate(std::move(tensors));
}

Result<void> WithSavedModel(
    const BenchOptions& options, const char* verb,
    const std::function<Result<void>(const std::string&, ModelMemory&)>& use) {
  const ScratchStore scratch(options.directory, verb);
  CAIRN_TRY_ASSIGN(ModelMemory model, MakeModel(options));
  model.FillAll(1);
  {
    ProgressLine progress("preparing the store");
    CAIRN_TRY_ASSIGN(const StorePointer store, OpenStore(scratch, kv::OpenMode::kWrite));
    const core::StateDict state = model.State();
    CAIRN_TRY(store->Save(1, state, {.incremental = false, .progress = progress.callback()}));
    CAIRN_TRY(store->Close());
  }
  return use(scratch.path(), model);
}

}  // namespace cairn::tools
