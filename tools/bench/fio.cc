// The speed of the raw device, measured by fio in the same directory and in the same run.

#include "tools/bench/fio.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "tools/bench/child_process.h"
#include "tools/common/json.h"

namespace cairn::tools {
namespace {

/// fio treats ":" in a path as a separator unless it is escaped.
/// The file of this process below `directory` that fio works on, which FioFile removes.
std::string FileName() { return fmt::format("cairn-bench-fio-{}.dat", ::getpid()); }

std::string EscapeColons(const std::string& path) {
  std::string out;
  for (const char c : path) {
    if (c == ':') out += '\\';
    out += c;
  }
  return out;
}

Result<FioResult> ParseFio(const std::string& output, std::string_view direction) {
  // Warnings may precede the document.
  const std::string json = output.substr(std::min(output.find('{'), output.size()));
  const auto bytes = FindJsonNumber(json, fmt::format("/jobs/0/{}/io_bytes", direction));
  const auto milliseconds = FindJsonNumber(json, fmt::format("/jobs/0/{}/runtime", direction));
  if (!bytes || !milliseconds) {
    return Fail(ErrorCode::kUnavailable, "the result of fio cannot be read");
  }
  FioResult result;
  result.bytes = static_cast<uint64_t>(*bytes);
  result.seconds = *milliseconds / 1000;
  return result;
}

Result<FioResult> Run(const std::string& directory, uint64_t bytes, std::string_view direction) {
  std::string last_output;
  for (const char* engine : {"io_uring", "libaio"}) {
    std::vector<std::string> words = {"fio",
                                      "--name=cairn",
                                      fmt::format("--directory={}", EscapeColons(directory)),
                                      fmt::format("--filename={}", FileName()),
                                      fmt::format("--rw={}", direction),
                                      fmt::format("--size={}", bytes / 4096 * 4096),
                                      fmt::format("--ioengine={}", engine),
                                      "--bs=4m",
                                      "--direct=1",
                                      "--iodepth=8",
                                      "--output-format=json"};
    if (direction == "write") words.emplace_back("--end_fsync=1");
    auto finished = RunChild("fio", words, ChildOutput::kStandardOutputAndError);
    if (!finished) {
      Error error = std::move(finished).error();
      error.message += "; install it or omit --fio";
      return Fail(std::move(error));
    }
    if (finished->status == 0) {
      CAIRN_TRY_ASSIGN(FioResult result, ParseFio(finished->output, direction));
      result.engine = engine;
      return result;
    }
    last_output = finished->output.substr(0, 200);
  }
  return Fail(ErrorCode::kUnavailable, fmt::format("fio failed: {}", last_output));
}

}  // namespace

Result<FioResult> FioWrite(const std::string& directory, uint64_t bytes) {
  // In an existing file, fio would not have to allocate blocks as a new segment does.
  std::error_code ignored;
  std::filesystem::remove(std::filesystem::path(directory) / FileName(), ignored);
  return Run(directory, bytes, "write");
}

Result<FioResult> FioRead(const std::string& directory, uint64_t bytes) {
  return Run(directory, bytes, "read");
}

FioFile::~FioFile() {
  std::error_code ignored;
  std::filesystem::remove(std::filesystem::path(directory) / FileName(), ignored);
}

BenchRow FioRow(const std::string& verb, const std::string& what, uint64_t run,
                const FioResult& fio) {
  BenchRow row{.verb = verb, .what = what, .run = run, .bytes = fio.bytes};
  row.measured.seconds = fio.seconds;
  row.in_this_process = false;
  row.extra["engine"] = fio.engine;
  row.note = fmt::format("O_DIRECT, {}, 4 MiB blocks, 8 in flight{}", fio.engine,
                         what == "fio write" ? ", end_fsync" : "");
  return row;
}

}  // namespace cairn::tools
