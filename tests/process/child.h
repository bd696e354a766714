#pragma once
/// A child process with its standard input and output in hand.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace cairn::testing {

/// Started with posix_spawn, never by forking a process that has threads. Killed and reaped by the
/// destructor if it still runs.
class Child {
 public:
  /// `arguments[0]` is the program's path. Ends the test process if it cannot be started.
  explicit Child(const std::vector<std::string>& arguments);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  /// The next line without its end, or nothing at the end of the output.
  std::optional<std::string> ReadLine();
  /// All complete lines up to the end of the output.
  std::vector<std::string> ReadLines();
  void CloseInput();
  void Kill();
  /// Waits for its end: the exit status, or minus the signal that ended it.
  int Wait();

 private:
  pid_t pid_ = -1;
  int input_ = -1;   // we write
  int output_ = -1;  // we read
  std::string buffer_;
};

}  // namespace cairn::testing
