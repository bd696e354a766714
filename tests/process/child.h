#pragma once
/// A child process whose standard input and output are connected to this process.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "kv/io/file_descriptor.h"

namespace cairn::testing {

/// The child is started with posix_spawn, because a process with threads must not fork. The
/// destructor kills and reaps it if it is still running.
///
/// If CAIRN_OTHER_TEST_DIR names the directory CAIRN_TEST_DIR through another mount, like that of
/// another machine, the first child and every second one after it use the other mount: their
/// arguments that begin with the one path begin with the other.
class Child {
 public:
  /// `given[0]` is the path of the program. Ends the test process if it cannot be started.
  explicit Child(const std::vector<std::string>& given);
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
