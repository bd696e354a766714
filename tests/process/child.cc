// Child processes.

#include "tests/process/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern char** environ;

namespace cairn::testing {

Child::Child(const std::vector<std::string>& arguments) {
  int input[2], output[2];
  if (::pipe2(input, O_CLOEXEC) != 0 || ::pipe2(output, O_CLOEXEC) != 0) {
    std::perror("cannot make pipes for a child");
    std::abort();
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int failed = ::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(input[0]);
  ::close(output[1]);
  if (failed != 0) {
    std::fprintf(stderr, "cannot start %s: %s\n", argv[0], std::strerror(failed));
    std::abort();
  }
  input_ = input[1];
  output_ = output[0];
}

Child::~Child() {
  if (pid_ > 0) {
    Kill();
    (void)Wait();
  }
  CloseInput();
  ::close(output_);
}

std::optional<std::string> Child::ReadLine() {
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    char piece[4096];
    const ssize_t got = ::read(output_, piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    buffer_.append(piece, static_cast<size_t>(got));
  }
}

std::vector<std::string> Child::ReadLines() {
  std::vector<std::string> lines;
  while (auto line = ReadLine()) lines.push_back(*std::move(line));
  return lines;
}

void Child::CloseInput() {
  if (input_ >= 0) ::close(input_);
  input_ = -1;
}

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
