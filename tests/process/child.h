#pragma once
/// A child process whose standard input and output are connected to this process.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "kv/file_descriptor.h"

namespace cairn::testing {

/// The child is started with posix_spawn, because a process with threads must not fork. The
/// destructor kills and reaps it if it is still running.
class Child {
 public:
  /// `arguments[0]` is the path of the program. Ends the test process if it cannot be started.
  explicit Child(const std::vector<std::string>& arguments);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  /// Returns the next line without its end, or nothing at the end of the output.
  std::optional<std::string> ReadLine();
  /// Returns all complete lines up to the end of the output.
  std::vector<std::string> ReadLines();
  /// Writes a line to the input of the child.
  void Say(const std::string& line);
  void CloseInput() { (void)input_.Close(); }
  void Kill();
  /// Waits until the child has stopped (SIGSTOP). Returns false if it has ended.
  bool AwaitStop();
  void Continue();
  /// Waits for the child to end. Returns the exit status, or minus the signal that ended it.
  int Wait();

 private:
  pid_t pid_ = -1;
  kv::FileDescriptor input_;   // written by this process
  kv::FileDescriptor output_;  // read by this process
  std::string buffer_;
};

}  // namespace cairn::testing
