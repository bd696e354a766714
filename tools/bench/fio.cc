#include "tools/bench/fio.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tools/bench/child_process.h"
#include "tools/common/json.h"

namespace cairn::tools {
namespace {

/// fio treats ":" in a path as a separator unless it is escaped.
std::string EscapeColons(const std::string& path) {
  std::string out;
  for (const char c : path) {
    if (c == ':') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

Fio::Fio(std::string directory, uint64_t bytes)
    : directory_(std::move(directory)),
      bytes_(bytes),
      name_(fmt::format("cairn-bench-fio-{}.dat", ::getpid())) {}

Fio::~Fio() { RemoveFile(); }

void Fio::RemoveFile() const {
  std::error_code ignored;
  std::filesystem::remove(std::filesystem::path(directory_) / name_, ignored);
}

Result<BenchRow> Fio::Write(uint64_t run) const {
  // In an existing file, fio would not have to allocate blocks as a new segment does.
  RemoveFile();
  return Run("write", run);
}

Result<BenchRow> Fio::Read(uint64_t run) const { return Run("read", run); }

Result<BenchRow> Fio::Run(const std::string& direction, uint64_t run) const {
  const bool writes = direction == "write";
  std::string last_output;
  for (const char* engine : {"io_uring", "libaio"}) {  // old kernels have only the second
    std::vector<std::string> words = {"fio",
                                      "--name=cairn",
                                      fmt::format("--directory={}", EscapeColons(directory_)),
                                      fmt::format("--filename={}", name_),
                                      fmt::format("--rw={}", direction),
                                      fmt::format("--size={}", bytes_ / 4096 * 4096),
                                      fmt::format("--ioengine={}", engine),
                                      "--bs=4m",
                                      "--direct=1",
                                      "--iodepth=8",
                                      "--output-format=json"};
    if (writes) words.emplace_back("--end_fsync=1");
    auto finished = RunChild("fio", words, ChildOutput::kStandardOutputAndError);
    if (!finished) {
      Error error = std::move(finished).error();
      error.message += "; install it or omit --fio";
      return Fail(std::move(error));
    }
    const std::string& output = finished->output;
    last_output = output.substr(0, 200);
    if (finished->status != 0) continue;
    // Warnings may precede the document.
    const std::string json = output.substr(std::min(output.find('{'), output.size()));
    const auto bytes = FindJsonNumber(json, fmt::format("/jobs/0/{}/io_bytes", direction));
    const auto milliseconds = FindJsonNumber(json, fmt::format("/jobs/0/{}/runtime", direction));
    if (!bytes || !milliseconds) {
      return Fail(ErrorCode::kUnavailable, "the result of fio cannot be read");
    }
    BenchRow row{.what = "fio " + direction, .run = run, .bytes = static_cast<uint64_t>(*bytes)};
    row.measured.seconds = *milliseconds / 1000;
    row.in_this_process = false;
    row.extra["engine"] = engine;
    row.note = fmt::format("O_DIRECT, {}, 4 MiB blocks, 8 in flight{}", engine,
                           writes ? ", end_fsync" : "");
    return row;
  }
  return Fail(ErrorCode::kUnavailable, fmt::format("fio failed: {}", last_output));
}

}  // namespace cairn::tools
