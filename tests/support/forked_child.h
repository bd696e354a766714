#pragma once
/// A forked child of a test, which must not use the test framework.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <utility>

namespace cairn::testing {

/// Ownership: the destructor waits for the child. Threads: one.
class ForkedChild {
 public:
  /// Runs `body` in the child, which then exits with 0 if it returned true, and otherwise with 1.
  explicit ForkedChild(const std::function<bool()>& body) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(body() ? 0 : 1);
    EXPECT_GT(pid_, 0);
  }
  ~ForkedChild() {
    if (pid_ > 0) Wait();
  }
  ForkedChild(const ForkedChild&) = delete;
  ForkedChild& operator=(const ForkedChild&) = delete;

  pid_t pid() const { return pid_; }
  /// Waits for the end of the child and returns its status as waitpid does; 0: it returned true.
  int Wait() {
    int status = -1;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
};

}  // namespace cairn::testing
