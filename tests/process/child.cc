// Child processes.

#include "tests/process/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern char** environ;

namespace cairn::testing {
namespace {

/// Replaces $CAIRN_TEST_DIR at the begin of the arguments of every other child by
/// $CAIRN_OTHER_TEST_DIR, if both are set.
std::vector<std::string> OnItsMachine(std::vector<std::string> arguments) {
  static std::atomic<int> count = 0;
  const char* const own = std::getenv("CAIRN_TEST_DIR");
  const char* const other = std::getenv("CAIRN_OTHER_TEST_DIR");
  if (own == nullptr || other == nullptr || count++ % 2 == 1) return arguments;
  for (std::string& argument : arguments) {
    if (argument.starts_with(own)) argument.replace(0, std::strlen(own), other);
  }
  return arguments;
}

}  // namespace

Child::Child(const std::vector<std::string>& given) {
  const std::vector<std::string> arguments = OnItsMachine(given);
  int input[2], output[2];
  if (::pipe2(input, O_CLOEXEC) != 0 || ::pipe2(output, O_CLOEXEC) != 0) {
    std::perror("cannot create pipes for a child");
    std::abort();
  }
  const kv::FileDescriptor child_input(input[0]);
  const kv::FileDescriptor child_output(output[1]);
  input_ = kv::FileDescriptor(input[1]);
  output_ = kv::FileDescriptor(output[0]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child_input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child_output.get(), STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int failed = ::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    std::fprintf(stderr, "cannot start %s: %s\n", argv[0], std::strerror(failed));
    std::abort();
  }
}

Child::~Child() {
  if (pid_ > 0) {
    Kill();
    (void)Wait();
  }
}

std::optional<std::string> Child::ReadLine() {
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    char buffer[4096];
    const ssize_t got = ::read(output_.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    buffer_.append(buffer, static_cast<size_t>(got));
  }
}

std::vector<std::string> Child::ReadLines() {
  std::vector<std::string> lines;
  while (auto line = ReadLine()) lines.push_back(*std::move(line));
  return lines;
}

void Child::Say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(input_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    std::perror("cannot write to a child");
    std::abort();
  }
}

bool Child::AwaitStop() {
  int status = 0;
  while (::waitpid(pid_, &status, WUNTRACED) < 0) {
    if (errno != EINTR) return false;
  }
  if (WIFSTOPPED(status)) return true;
  pid_ = -1;
  return false;
}

void Child::Continue() { ::kill(pid_, SIGCONT); }

void Child::Kill() { ::kill(pid_, SIGKILL); }

int Child::Wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace cairn::testing
