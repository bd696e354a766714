#pragma once
/// Threads of a block: stacks that one thread of the system switches between.

#include <cstddef>
#include <functional>

namespace cairn::simulated_cuda {

/// A stack with what runs on it. Switching takes a few nanoseconds without sanitizers, which are
/// told of every switch.
/// Threads: of the thread that made it only.
class Fiber {
 public:
  /// The stack that this thread runs on already; switch away from it and back to it.
  Fiber();
  /// Runs `body`, which must not return, at the first switch to it.
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Goes on with `next`; returns when somebody switches back to `this`, which is what runs now.
  void SwitchTo(Fiber& next);

 private:
  static void Enter(unsigned high, unsigned low);

  std::function<void()> body_;
  void* stack_ = nullptr;
  size_t stack_bytes_ = 0;
  bool entered_ = false;
  struct Context;
  Context* context_;
};

}  // namespace cairn::simulated_cuda
