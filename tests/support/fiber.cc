// Switches stacks with ucontext for the first entry, and then with setjmp, which needs no system
// call. With a sanitizer always uses ucontext, because sanitizers intercept setjmp.
#include "tests/support/fiber.h"

#include <pthread.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace cairn::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
constexpr size_t kStackFactor = 4;
#else
constexpr bool kSanitized = false;
constexpr size_t kStackFactor = 1;
#endif
constexpr size_t kGuardBytes = 4096;

}  // namespace

struct Fiber::Context {
  ucontext_t ucontext;
  jmp_buf jump;
  void* sanitizer_state = nullptr;     // ASan's fake stack while other fibers run
  const void* stack_bottom = nullptr;  // for ASan: where this stack is
  size_t stack_size = 0;
};

namespace {

// Must be the first call on a stack after a switch to it.
void AfterSwitch([[maybe_unused]] void* sanitizer_state) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sanitizer_state, nullptr, nullptr);
#endif
}

}  // namespace

Fiber::Fiber() : entered_(true), context_(new Context) {
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  void* bottom = nullptr;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &bottom, &context_->stack_size);
  pthread_attr_destroy(&attributes);
  context_->stack_bottom = bottom;
#endif
#if defined(__SANITIZE_THREAD__)
  context_->sanitizer_state = __tsan_get_current_fiber();
#endif
}

Fiber::Fiber(std::function<void()> body, size_t stack_bytes)
    : body_(std::move(body)),
      stack_bytes_(stack_bytes * kStackFactor + kGuardBytes),
      context_(new Context) {
  stack_ = mmap(nullptr, stack_bytes_, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack_ == MAP_FAILED || mprotect(stack_, kGuardBytes, PROT_NONE) != 0) {
    std::fprintf(stderr, "no stack for a fiber\n");
    std::abort();
  }
  context_->stack_bottom = static_cast<char*>(stack_) + kGuardBytes;
  context_->stack_size = stack_bytes_ - kGuardBytes;
  getcontext(&context_->ucontext);
  context_->ucontext.uc_stack.ss_sp = static_cast<char*>(stack_) + kGuardBytes;
  context_->ucontext.uc_stack.ss_size = stack_bytes_ - kGuardBytes;
  context_->ucontext.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(this);
  makecontext(&context_->ucontext, reinterpret_cast<void (*)()>(&Fiber::Enter), 2,
              static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  // ASan would clear the shadow of the stack at every switch, although it is told about them.
  context_->ucontext.uc_stack.ss_size = 0;
#if defined(__SANITIZE_THREAD__)
  context_->sanitizer_state = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  if (stack_ != nullptr) __tsan_destroy_fiber(context_->sanitizer_state);
#endif
  if (stack_ != nullptr) munmap(stack_, stack_bytes_);
  delete context_;
}

void Fiber::Enter(unsigned high, unsigned low) {
  AfterSwitch(nullptr);
  auto* const self = reinterpret_cast<Fiber*>((static_cast<uintptr_t>(high) << 32) | low);
  self->body_();
  std::fprintf(stderr, "the body of a fiber returned\n");
  std::abort();
}

void Fiber::SwitchTo(Fiber& next) {
  Context& to = *next.context_;
  const bool first = !std::exchange(next.entered_, true);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&context_->sanitizer_state, to.stack_bottom, to.stack_size);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.sanitizer_state, 0);
#endif
  if constexpr (kSanitized) {
    swapcontext(&context_->ucontext, &to.ucontext);
  } else if (_setjmp(context_->jump) == 0) {
    if (first) {
      setcontext(&to.ucontext);
    } else {
      _longjmp(to.jump, 1);
    }
  }
  AfterSwitch(context_->sanitizer_state);
}

}  // namespace cairn::testing
