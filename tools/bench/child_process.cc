// Child processes whose output is read.

#include "tools/bench/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

extern char** environ;

namespace cairn::tools {
namespace {

std::string ReadToEnd(int file) {
  std::string output;
  char buffer[4096];
  while (true) {
    const ssize_t got = read(file, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return output;
    output.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace

Result<FinishedChild> RunChild(const std::string& program, std::vector<std::string> words,
                               ChildOutput captured) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Fail(SystemError(errno, fmt::format("creating a pipe to {}", words[0])));
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  if (captured == ChildOutput::kStandardOutputAndError) {
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  }
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return Fail(SystemError(error, fmt::format("starting {}", words[0])));
  }
  FinishedChild finished;
  finished.output = ReadToEnd(ends[0]);
  close(ends[0]);
  while (waitpid(child, &finished.status, 0) < 0 && errno == EINTR) {
  }
  return finished;
}

}  // namespace cairn::tools
