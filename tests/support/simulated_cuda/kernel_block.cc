// The threads of a block, as fibers of the stream's thread.
//
// 1. A fiber runs one thread after another until a thread has to wait (vote, shuffle). A block
//    whose threads never wait needs one fiber.
// 2. A thread that waits keeps its fiber. Another fiber continues: that of a thread whose wait is
//    over, or otherwise a new one, which begins with the next thread.
// 3. The last thread to arrive ends the wait of the others. Threads that have returned count as
//    arrived, as on devices since Volta.
// 4. If no thread can continue, the kernel would hang: the process ends with a message that states
//    where the threads wait.
#include "tests/support/simulated_cuda/kernel_block.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tests/support/fiber.h"
#include "tests/support/simulated_cuda/runtime.h"

thread_local constinit uint3 threadIdx{};
thread_local constinit uint3 blockIdx{};
thread_local constinit dim3 blockDim{};
thread_local constinit dim3 gridDim{};

namespace cairn::simulated_cuda {
namespace {

using cairn::testing::Fiber;

constexpr unsigned kWarpSize = 32;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "simulated CUDA: %s\n", what);
  std::abort();
}

enum class WarpOperation { kBallot, kShuffle };

// A thread of the current block, and what it waits for.
struct Thread {
  uint3 index{};
  unsigned lane = 0;
  Fiber* fiber = nullptr;
  unsigned warp = 0;
  uint64_t value = 0;   // argument of the wait
  unsigned source = 0;  // the lane that a shuffle reads
  uint64_t result = 0;  // result of the wait
};

// Lanes that wait for each other.
struct WarpGroup {
  uint32_t mask = 0;
  uint32_t arrived = 0;
  WarpOperation operation = WarpOperation::kBallot;
};

struct Warp {
  uint32_t exited = 0;
  std::vector<WarpGroup> groups;
};

struct Launch {
  dim3 grid;
  dim3 block;
  const std::function<void()>* thread_body = nullptr;
  std::mt19937_64* thread_order = nullptr;  // null: in order

  uint64_t block_count() const { return uint64_t{grid.x} * grid.y * grid.z; }
  unsigned thread_count() const { return block.x * block.y * block.z; }
};

// Runs blocks on this thread. Reuses its fibers for later kernels.
class BlockRunner {
 public:
  static BlockRunner& OfThisThread() {
    thread_local BlockRunner runner;
    return runner;
  }

  // Returns the error with which the kernel ended.
  cudaError_t Run(const Launch& launch);

  uint64_t WaitInWarp(WarpOperation operation, uint32_t mask, uint64_t value, unsigned source);
  [[noreturn]] void Fail(cudaError_t error);
  bool running() const { return launch_ != nullptr; }

 private:
  void RunBlock(uint3 block_index);
  void RunFiber();
  void RunThread(unsigned index);
  void Wait();
  void LeaveFiber(Fiber& fiber, bool idle);
  void EndWait(Thread& thread) { ready_.push_back(&thread); }
  void FinishGroupIfComplete(unsigned warp, size_t group);
  void AfterExit(const Thread& thread);
  [[noreturn]] void DieOfDeadlock();
  Fiber& IdleFiber();
  void GoOnAs(Thread& thread) {
    current_ = &thread;
    threadIdx = thread.index;
  }

  std::unique_ptr<Fiber> main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* running_fiber_ = nullptr;

  const Launch* launch_ = nullptr;  // null: no kernel is running
  cudaError_t error_ = cudaSuccess;

  std::vector<Thread> threads_;
  Thread* current_ = nullptr;
  std::vector<unsigned> order_;  // the order in which threads start
  std::vector<Warp> warps_;
  unsigned started_count_ = 0;
  unsigned finished_count_ = 0;
  std::deque<Thread*> ready_;  // threads whose wait is over
};

// Handles an invalid access of a kernel. Sets the error of the device, as far as it can be known.
struct sigaction action_before;

[[maybe_unused]] void OnBadAddress(int signal, siginfo_t* info, void* context) {
  BlockRunner& runner = BlockRunner::OfThisThread();
  if (runner.running()) runner.Fail(cudaErrorIllegalAddress);
  if ((action_before.sa_flags & SA_SIGINFO) != 0) {
    action_before.sa_sigaction(signal, info, context);
    return;
  }
  sigaction(SIGSEGV, &action_before, nullptr);  // the fault occurs again, with the old action
}

void CatchBadAddresses() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = OnBadAddress;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &action_before);
  });
#endif
}

cudaError_t BlockRunner::Run(const Launch& launch) {
  if (!main_) main_ = std::make_unique<Fiber>();
  launch_ = &launch;
  error_ = cudaSuccess;
  const dim3& grid = launch.grid;
  for (uint64_t i = 0; i < launch.block_count() && error_ == cudaSuccess; ++i) {
    RunBlock({static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
              static_cast<unsigned>(i / grid.x / grid.y)});
  }
  if (error_ != cudaSuccess) {
    idle_.clear();  // the failure has left their stacks in an unknown state
    fibers_.clear();
  }
  launch_ = nullptr;
  return error_;
}

void BlockRunner::RunBlock(uint3 block_index) {
  blockIdx = block_index;
  blockDim = launch_->block;
  gridDim = launch_->grid;
  const unsigned count = launch_->thread_count();
  threads_.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = threads_[i];
    thread = {};
    const dim3& block = launch_->block;
    thread.index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    thread.lane = i % kWarpSize;
    thread.warp = i / kWarpSize;
  }
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0u);
  if (launch_->thread_order != nullptr) {
    std::shuffle(order_.begin(), order_.end(), *launch_->thread_order);
  }
  warps_.assign((count + kWarpSize - 1) / kWarpSize, {});
  if (const unsigned rest = count % kWarpSize; rest != 0) warps_.back().exited = ~0u << rest;
  started_count_ = finished_count_ = 0;
  ready_.clear();

  running_fiber_ = &IdleFiber();
  main_->SwitchTo(*running_fiber_);
}

Fiber& BlockRunner::IdleFiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>([this] { RunFiber(); }));
    return *fibers_.back();
  }
  Fiber* const fiber = idle_.back();
  idle_.pop_back();
  return *fiber;
}

// Never returns: idle fibers are reused.
void BlockRunner::RunFiber() {
  Fiber& self = *running_fiber_;
  for (;;) {
    while (ready_.empty() && started_count_ < threads_.size()) {
      RunThread(order_[started_count_++]);
    }
    LeaveFiber(self, true);
  }
}

void BlockRunner::RunThread(unsigned index) {
  Thread& thread = threads_[index];
  thread.fiber = running_fiber_;
  GoOnAs(thread);
  (*launch_->thread_body)();
  ++finished_count_;
  AfterExit(thread);
}

// Continues with a thread whose wait is over, a thread that has not begun, or the end of the block.
// `idle`: the fiber of the caller can run another thread.
void BlockRunner::LeaveFiber(Fiber& fiber, bool idle) {
  Fiber* next = nullptr;
  if (!ready_.empty()) {
    Thread* const thread = ready_.front();
    ready_.pop_front();
    GoOnAs(*thread);
    next = thread->fiber;
    if (next == &fiber) return;
  } else if (started_count_ < threads_.size()) {
    next = &IdleFiber();
  } else if (finished_count_ == threads_.size()) {
    next = main_.get();
  } else {
    DieOfDeadlock();
  }
  if (idle) idle_.push_back(&fiber);
  running_fiber_ = next;
  fiber.SwitchTo(*next);
}

void BlockRunner::Wait() { LeaveFiber(*current_->fiber, false); }

uint64_t BlockRunner::WaitInWarp(WarpOperation operation, uint32_t mask, uint64_t value,
                                 unsigned source) {
  Thread& self = *current_;
  const uint32_t bit = 1u << self.lane;
  if ((mask & bit) == 0) Die("a lane calls a warp operation whose mask does not name it");
  self.value = value;
  self.source = source;
  std::vector<WarpGroup>& groups = warps_[self.warp].groups;
  auto group = std::find_if(groups.begin(), groups.end(), [&](const WarpGroup& other) {
    return other.mask == mask && (other.arrived & bit) == 0;
  });
  if (group == groups.end()) {
    groups.push_back({mask, 0, operation});
    group = std::prev(groups.end());
  }
  if (group->operation != operation) Die("lanes of one mask call different warp operations");
  group->arrived |= bit;
  FinishGroupIfComplete(self.warp, static_cast<size_t>(group - groups.begin()));
  Wait();
  return self.result;
}

void BlockRunner::FinishGroupIfComplete(unsigned warp_index, size_t group_index) {
  Warp& warp = warps_[warp_index];
  const WarpGroup group = warp.groups[group_index];
  if (((group.arrived | warp.exited) & group.mask) != group.mask) return;
  warp.groups.erase(warp.groups.begin() + static_cast<ptrdiff_t>(group_index));
  const auto thread_of = [&](unsigned lane) -> Thread& {
    return threads_[warp_index * kWarpSize + lane];
  };
  uint64_t ballot = 0;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((group.arrived >> lane & 1) != 0 && thread_of(lane).value != 0) ballot |= 1u << lane;
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((group.arrived >> lane & 1) == 0) continue;
    Thread& thread = thread_of(lane);
    if (group.operation == WarpOperation::kShuffle) {
      const bool takes_part = (group.arrived >> thread.source & 1) != 0;
      thread.result = takes_part ? thread_of(thread.source).value : kUndefinedLane;
    } else {
      thread.result = ballot;
    }
    EndWait(thread);
  }
}

void BlockRunner::AfterExit(const Thread& thread) {
  Warp& warp = warps_[thread.warp];
  warp.exited |= 1u << thread.lane;
  for (size_t i = warp.groups.size(); i-- > 0;) FinishGroupIfComplete(thread.warp, i);
}

void BlockRunner::DieOfDeadlock() {
  size_t in_warps = 0;
  for (const Warp& warp : warps_) {
    for (const WarpGroup& group : warp.groups) {
      in_warps += static_cast<size_t>(__builtin_popcount(group.arrived));
    }
  }
  std::fprintf(
      stderr,
      "simulated CUDA: block (%u, %u, %u) hangs: of %zu threads %u have returned, %zu wait for "
      "lanes of their warp\n",
      blockIdx.x, blockIdx.y, blockIdx.z, threads_.size(), finished_count_, in_warps);
  std::abort();
}

void BlockRunner::Fail(cudaError_t error) {
  error_ = error;
  running_fiber_->SwitchTo(*main_);
  std::abort();  // never reached: nothing switches back after a failure
}

bool IsLaunchable(const Runtime& runtime, const cudaLaunchConfig_t& config) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  const bool grid_ok = grid.x >= 1 && grid.x <= 0x7fffffffu && grid.y >= 1 && grid.y <= 65535 &&
                       grid.z >= 1 && grid.z <= 65535;
  const bool block_ok = block.x >= 1 && block.y >= 1 && block.z >= 1 && block.x <= 1024 &&
                        block.y <= 1024 && block.z <= 64 &&
                        uint64_t{block.x} * block.y * block.z <= 1024;
  return grid_ok && block_ok && !runtime.devices.empty();
}

// The operation of the stream.
void RunKernel(Runtime& runtime, int device, const Launch& launch) {
  DeviceArena& arena = runtime.memory->arena(device);
  arena.BeginKernel();
  const cudaError_t error = BlockRunner::OfThisThread().Run(launch);
  arena.EndKernel();
  if (error != cudaSuccess) runtime.SetStickyError(device, error);
}

}  // namespace

cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, std::function<void()> thread_body) {
  return Call("cudaLaunchKernelEx", Needs::kDevice, [&] {
    CatchBadAddresses();
    Runtime& runtime = Runtime::Get();
    const std::lock_guard lock(runtime.mutex());
    const StreamPtr queue = runtime.FindStream(config.stream);
    if (!queue || queue->options().device != CurrentDevice()) return cudaErrorInvalidResourceHandle;
    if (!IsLaunchable(runtime, config)) return cudaErrorInvalidConfiguration;
    if (config.dynamicSmemBytes > 0) return cudaErrorInvalidValue;  // not simulated
    const int device = queue->options().device;
    const bool shuffled = runtime.config.shuffle_threads;
    const uint64_t seed = runtime.config.jitter_seed + ++runtime.kernel_count;
    runtime.Enqueue(queue, [&runtime, device, grid = config.gridDim, block = config.blockDim, seed,
                            shuffled, body = std::move(thread_body)] {
      std::mt19937_64 random(seed);
      RunKernel(runtime, device, {grid, block, &body, shuffled ? &random : nullptr});
    });
    return cudaSuccess;
  });
}

uint32_t WarpBallot(uint32_t mask, bool predicate) {
  return static_cast<uint32_t>(
      BlockRunner::OfThisThread().WaitInWarp(WarpOperation::kBallot, mask, predicate ? 1 : 0, 0));
}

uint64_t WarpShuffle(uint32_t mask, uint64_t value, unsigned source) {
  return BlockRunner::OfThisThread().WaitInWarp(WarpOperation::kShuffle, mask, value, source);
}

}  // namespace cairn::simulated_cuda
