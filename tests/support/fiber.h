#pragma once
/// Fibers: stacks that one thread of the system switches between, for simulations.

#include <cstddef>
#include <functional>

namespace cairn::testing {

/// A stack and the function that runs on it. Without sanitizers, which are informed of every
/// switch, a switch takes a few nanoseconds. Threads: only the thread that created it uses it.
class Fiber {
 public:
  /// Represents the current stack of this thread, so that it can be switched away from and back to.
  Fiber();
  /// Runs `body`, which must not return, at the first switch to it. `stack_bytes` is a multiple of
  /// the size of a page; sanitizers get four times as much.
  explicit Fiber(std::function<void()> body, size_t stack_bytes = size_t{64} << 10);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Continues with `next`. Returns when another fiber switches back to `this`. Requires that
  /// `this` is running.
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

}  // namespace cairn::testing
