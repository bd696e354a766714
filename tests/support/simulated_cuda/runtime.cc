// The state of the simulation, and the functions that tests control it with.
#include "tests/support/simulated_cuda/runtime.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/support/simulated_cuda/stream_work.h"

namespace cairn::simulated_cuda {
namespace {

// CUDA does not list the calls that are unsafe during a capture, except for cudaMalloc: those that
// wait, query or allocate.
constexpr std::string_view kUnsafeDuringCapture[] = {"cudaMalloc",
                                                     "cudaFree",
                                                     "cudaHostAlloc",
                                                     "cudaFreeHost",
                                                     "cudaHostRegister",
                                                     "cudaHostUnregister",
                                                     "cudaStreamSynchronize",
                                                     "cudaStreamQuery",
                                                     "cudaEventQuery",
                                                     "cudaEventSynchronize",
                                                     "cudaDeviceSynchronize"};

// Threads keep their current device until Reset.
std::atomic<uint64_t> generation{1};

struct ThreadState {
  uint64_t generation = 0;
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  bool in_host_function = false;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
};

ThreadState& ThisThread() {
  thread_local ThreadState state;
  const uint64_t now = generation.load();
  if (state.generation != now) {
    state.generation = now;
    state.device = 0;
    state.last_error = cudaSuccess;
  }
  return state;
}

}  // namespace

int CurrentDevice() { return ThisThread().device; }
void SetCurrentDevice(int device) { ThisThread().device = device; }
cudaError_t& LastError() { return ThisThread().last_error; }
bool& InHostFunction() { return ThisThread().in_host_function; }
cudaStreamCaptureMode& CaptureMode() { return ThisThread().capture_mode; }

void WaitForAll(const std::vector<CompletionPtr>& completions) {
  for (const CompletionPtr& completion : completions) completion->Wait();
}

// Never destroyed: threads of streams may outlive static objects.
Runtime& Runtime::Get() {
  static auto* const runtime = new Runtime;
  return *runtime;
}

Runtime::Runtime() { Reset(Config{}); }

void Runtime::Reset(const Config& new_config) {
  std::vector<StreamPtr> closing;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [device, block] : blocks) {
      if (const CompletionPtr released = block.lock()) released->Finish();
    }
    for (auto& [handle, stream] : streams) closing.push_back(stream);
    for (Device& device : devices) {
      if (device.legacy_stream) closing.push_back(device.legacy_stream);
    }
    streams.clear();
    captures.clear();
    blocks.clear();
  }
  for (const StreamPtr& stream : closing) stream->Close();
  closing.clear();
  StreamQueue::WaitForClosedStreams();

  const std::lock_guard lock(mutex_);
  ++generation;
  config = new_config;
  devices.assign(config.device_count, {});
  events.clear();
  freed_later_bytes.clear();
  memory = std::make_unique<MemoryRegistry>(config.device_count, config.device_memory_bytes);
  stream_number_ = 0;
  counters = {};
  kernel_count = 0;
  ClearFaults();
}

StreamPtr Runtime::FindStream(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return LegacyStream(CurrentDevice());
  const auto found = streams.find(stream);
  return found == streams.end() ? nullptr : found->second;
}

StreamPtr Runtime::LegacyStream(int device) {
  StreamPtr& stream = devices[device].legacy_stream;
  if (!stream) stream = NewStream(device, cudaStreamDefault);
  return stream;
}

StreamPtr Runtime::NewStream(int device, unsigned flags) {
  const uint64_t seed = config.jitter_seed * 0x9E3779B97F4A7C15u + ++stream_number_;
  return std::make_shared<StreamQueue>(StreamQueue::Options{device, flags, config.jitter_us, seed});
}

std::vector<CompletionPtr> Runtime::Tails(int device, bool blocking_only) {
  std::vector<CompletionPtr> tails;
  const auto add = [&](const StreamPtr& stream) {
    if (CompletionPtr tail = stream->tail(); !tail->Finished()) tails.push_back(std::move(tail));
  };
  for (const auto& [handle, stream] : streams) {
    if (stream->options().device != device) continue;
    if (!blocking_only || (stream->options().flags & cudaStreamNonBlocking) == 0) add(stream);
  }
  if (devices[device].legacy_stream) add(devices[device].legacy_stream);
  return tails;
}

CompletionPtr Runtime::Enqueue(const StreamPtr& stream, std::function<void()> run,
                               std::vector<CompletionPtr> after) {
  const int device = stream->options().device;
  const StreamPtr& legacy = devices[device].legacy_stream;
  if (stream == legacy) {
    for (CompletionPtr& tail : Tails(device, true)) after.push_back(std::move(tail));
  } else if (legacy && (stream->options().flags & cudaStreamNonBlocking) == 0) {
    after.push_back(legacy->tail());
  }
  return stream->Enqueue(
      [this, device, run = std::move(run)] {
        if (run && StickyError(device) == cudaSuccess) run();
      },
      std::move(after));
}

cudaError_t Runtime::StickyError(int device) {
  const std::lock_guard lock(mutex_);
  return devices[device].sticky_error;
}

void Runtime::SetStickyError(int device, cudaError_t error) {
  const std::lock_guard lock(mutex_);
  if (devices[device].sticky_error == cudaSuccess) devices[device].sticky_error = error;
  for (auto& [blocked_device, block] : blocks) {
    if (blocked_device != device) continue;
    if (const CompletionPtr released = block.lock()) released->Finish();
  }
}

void Runtime::SetFault(std::string_view function, uint64_t nth, cudaError_t error) {
  faults_.insert_or_assign(std::string(function), Fault{nth, error});
}

bool Runtime::FaultHappened(std::string_view function) {
  const auto found = faults_.find(function);
  return found == faults_.end() || found->second.calls_left == 0;
}

void Runtime::ClearFaults() { faults_.clear(); }

cudaError_t Runtime::CheckCaptures(std::string_view function) {
  if (captures.empty() || CaptureMode() == cudaStreamCaptureModeRelaxed ||
      std::ranges::find(kUnsafeDuringCapture, function) == std::end(kUnsafeDuringCapture)) {
    return cudaSuccess;
  }
  for (auto& [stream, valid] : captures) valid = false;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t Runtime::TakeFault(std::string_view function) {
  cudaError_t taken = cudaSuccess;
  for (const std::string_view name : {function, std::string_view("*")}) {
    const auto found = faults_.find(name);
    if (found == faults_.end() || found->second.calls_left == 0) continue;
    if (--found->second.calls_left == 0) taken = found->second.error;
  }
  return taken;
}

void Reset(const Config& config) { Runtime::Get().Reset(config); }

Counters GetCounters() {
  const std::lock_guard lock(Runtime::Get().mutex());
  return Runtime::Get().counters;
}

void ResetCounters() {
  const std::lock_guard lock(Runtime::Get().mutex());
  Runtime::Get().counters = {};
}

void FailCall(std::string_view function, uint64_t nth, cudaError_t error) {
  const std::lock_guard lock(Runtime::Get().mutex());
  Runtime::Get().SetFault(function, nth, error);
}

bool FaultHappened(std::string_view function) {
  const std::lock_guard lock(Runtime::Get().mutex());
  return Runtime::Get().FaultHappened(function);
}

void ClearFaults() {
  const std::lock_guard lock(Runtime::Get().mutex());
  Runtime::Get().ClearFaults();
}

void LoseDevice(int device, cudaError_t error) { Runtime::Get().SetStickyError(device, error); }

Live GetLive() {
  Runtime& runtime = Runtime::Get();
  const std::lock_guard lock(runtime.mutex());
  const MemoryRegistry::Totals totals = runtime.memory->GetTotals();
  return {.device_allocation_count = totals.device_count,
          .device_bytes = totals.device_bytes,
          .pinned_allocation_count = totals.pinned_count,
          .pinned_bytes = totals.pinned_bytes,
          .registered_count = totals.registered_count,
          .stream_count = runtime.streams.size(),
          .event_count = runtime.events.size()};
}

namespace {

std::byte* CheckedDeviceAlias(const void* address, uint64_t bytes) {
  MemoryRegistry& memory = *Runtime::Get().memory;
  if (memory.Find(address).kind != MemoryKind::kDevice || !memory.InBounds(address, bytes)) {
    std::fprintf(stderr, "simulated CUDA: %p is not device memory of %llu bytes\n", address,
                 static_cast<unsigned long long>(bytes));
    std::abort();
  }
  return memory.Accessible(address);
}

}  // namespace

void PeekDevice(void* target, const void* device_source, uint64_t bytes) {
  if (bytes > 0) std::memcpy(target, CheckedDeviceAlias(device_source, bytes), bytes);
}

void PokeDevice(void* device_target, const void* source, uint64_t bytes) {
  if (bytes > 0) std::memcpy(CheckedDeviceAlias(device_target, bytes), source, bytes);
}

cudaError_t EnqueueWork(cudaStream_t stream, int device, std::function<void()> work) {
  Runtime& runtime = Runtime::Get();
  const std::lock_guard lock(runtime.mutex());
  const StreamPtr queue = runtime.FindStream(stream);
  if (!queue || queue->options().device != device) return cudaErrorInvalidResourceHandle;
  runtime.Enqueue(queue, std::move(work));
  return runtime.devices[device].sticky_error;
}

std::byte* AccessibleByDevice(const void* address, uint64_t bytes, int device) {
  const MemoryRegistry& memory = *Runtime::Get().memory;
  const MemoryRange range = memory.Find(address);
  const bool is_open = range.kind == MemoryKind::kPinned || range.kind == MemoryKind::kRegistered ||
                       (range.kind == MemoryKind::kDevice && range.device == device);
  return is_open && memory.InBounds(address, bytes) ? memory.Accessible(address) : nullptr;
}

bool IsLost(int device) { return Runtime::Get().StickyError(device) != cudaSuccess; }

struct StreamBlock::State {
  CompletionPtr released = std::make_shared<Completion>();
  CompletionPtr reached;
};

StreamBlock::StreamBlock(cudaStream_t stream) : state_(std::make_shared<State>()) {
  Runtime& runtime = Runtime::Get();
  const std::lock_guard lock(runtime.mutex());
  const StreamPtr queue = runtime.FindStream(stream);
  if (!queue) {
    std::fprintf(stderr, "simulated CUDA: StreamBlock of a stream that is none\n");
    std::abort();
  }
  state_->reached = runtime.Enqueue(queue, nullptr);
  runtime.Enqueue(queue, [released = state_->released] { released->Wait(); });
  runtime.blocks.emplace_back(queue->options().device, state_->released);
}

StreamBlock::~StreamBlock() { Release(); }

void StreamBlock::Release() { state_->released->Finish(); }

void StreamBlock::WaitUntilReached() const { state_->reached->Wait(); }

}  // namespace cairn::simulated_cuda
