// The raw device's speed, measured by fio on the same directory and in the same run.

#include "tools/bench/fio.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <vector>

#include "tools/common/json.h"

extern char** environ;

namespace cairn::tools::internal {
namespace {

/// fio takes ":" in a path as a separator unless it is escaped.
std::string EscapeColons(const std::string& path) {
  std::string out;
  for (const char c : path) {
    if (c == ':') out += '\\';
    out += c;
  }
  return out;
}

struct Finished {
  int status = 0;      // as waitpid gives it
  std::string output;  // standard output and standard error
};

Result<Finished> RunProgramAndRead(const std::vector<std::string>& words) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Fail(SystemError(errno, "making a pipe to fio"));
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return Fail(SystemError(error, "starting fio; install it or leave out --fio"));
  }
  Finished finished;
  char buffer[4096];
  while (true) {
    const ssize_t got = read(ends[0], buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    finished.output.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  while (waitpid(child, &finished.status, 0) < 0 && errno == EINTR) {
  }
  return finished;
}

Result<FioResult> ParseFio(const std::string& output, const char* direction) {
  const size_t begin = output.find('{');  // warnings may come first
  const Json json = Json::parse(begin == std::string::npos ? "" : output.substr(begin), nullptr,
                                /*allow_exceptions=*/false);
  const auto pointer = Json::json_pointer(fmt::format("/jobs/0/{}", direction));
  if (json.is_discarded() || !json.contains(pointer)) {
    return Fail(ErrorCode::kUnavailable, "fio printed no result that can be read");
  }
  const Json& job = json.at(pointer);
  FioResult result;
  result.bytes = job.value("io_bytes", uint64_t{0});
  result.seconds = job.value("runtime", 0.0) / 1000;
  return result;
}

Result<FioResult> Run(const std::string& directory, uint64_t bytes, const char* direction) {
  const bool writes = std::string_view(direction) == "write";
  std::string last_output;
  for (const char* engine : {"io_uring", "libaio"}) {
    std::vector<std::string> words = {"fio",
                                      "--name=cairn",
                                      fmt::format("--directory={}", EscapeColons(directory)),
                                      fmt::format("--filename={}", kFioFileName),
                                      fmt::format("--rw={}", direction),
                                      fmt::format("--size={}", bytes / 4096 * 4096),
                                      fmt::format("--ioengine={}", engine),
                                      "--bs=4m",
                                      "--direct=1",
                                      "--iodepth=8",
                                      "--output-format=json"};
    if (writes) words.emplace_back("--end_fsync=1");
    CAIRN_TRY_ASSIGN(const Finished finished, RunProgramAndRead(words));
    if (finished.status == 0) {
      CAIRN_TRY_ASSIGN(FioResult result, ParseFio(finished.output, direction));
      result.engine = engine;
      return result;
    }
    last_output = finished.output.substr(0, 200);
  }
  return Fail(ErrorCode::kUnavailable, fmt::format("fio failed: {}", last_output));
}

}  // namespace

Result<FioResult> FioWrite(const std::string& directory, uint64_t bytes) {
  // A file that exists would spare fio the allocation that a new segment pays for.
  std::error_code ignored;
  std::filesystem::remove(std::filesystem::path(directory) / kFioFileName, ignored);
  return Run(directory, bytes, "write");
}

Result<FioResult> FioRead(const std::string& directory, uint64_t bytes) {
  return Run(directory, bytes, "read");
}

}  // namespace cairn::tools::internal
