#pragma once
/// Runs of fio as rows beside the store's, and the removal of its file.

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "tools/bench/report.h"
#include "tools/bench/fio.h"

namespace cairn::tools::internal {

/// Removes fio's file at the end.
struct FioFile {
  std::string directory;
  ~FioFile() {
    std::error_code ignored;
    std::filesystem::remove(std::filesystem::path(directory) / kFioFileName, ignored);
  }
};

inline BenchRow FioRow(const std::string& verb, const std::string& what, uint64_t run,
                       const FioResult& fio) {
  BenchRow row{.verb = verb, .what = what, .run = run, .bytes = fio.bytes};
  row.measured.seconds = fio.seconds;
  row.in_this_process = false;
  row.extra["engine"] = fio.engine;
  row.note = fmt::format("O_DIRECT, {}, 4 MiB blocks, 8 in flight{}", fio.engine,
                         what == "fio write" ? ", end_fsync" : "");
  return row;
}

}  // namespace cairn::tools::internal
