// Runs the cases that are named on the command line, or all of them, for bench/regression.py:
//
//   cairn_regression DIRECTORY [CASE...]

#include <rocksdb/version.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <vector>

#include "bench/regression/counting.h"

namespace cairn::bench {
namespace {

constexpr std::array kCases = {
    Case{"word_sum", CountWordSum},         Case{"digest", CountDigest},
    Case{"gather_rows", CountGatherRows},   Case{"gather_transposed", CountGatherTransposed},
    Case{"scatter_rows", CountScatterRows}, Case{"scatter_transposed", CountScatterTransposed},
    Case{"chunk_key", CountChunkKeys},      Case{"small_tensors", CountSmallTensors},
    Case{"payload", CountPayload},          Case{"open", CountOpen},
};

int Run(const std::filesystem::path& directory, const std::vector<std::string_view>& names) {
#ifndef __OPTIMIZE__
  std::fprintf(stderr,
               "cairn_regression: built without optimization, so its counts are not meaningful\n");
  return 2;
#endif
  // The counts depend on these versions besides our code. Valgrind presents the same processor to
  // the program on every machine with AVX2.
  std::printf("toolchain g++ %d, RocksDB %d.%d, %s\n", __GNUC__, ROCKSDB_MAJOR, ROCKSDB_MINOR,
              __builtin_cpu_supports("avx2") ? "AVX2" : "no AVX2");
  for (const Case& one : kCases) {
    if (!names.empty() && std::ranges::find(names, one.name) == names.end()) continue;
    const auto case_directory = directory / one.name;
    std::filesystem::create_directories(case_directory);
    if (const auto done = one.run(case_directory.string()); !done) {
      std::fprintf(stderr, "cairn_regression: %s: %s\n", one.name, done.error().ToString().c_str());
      return 2;
    }
    std::filesystem::remove_all(case_directory);
  }
  return 0;
}

}  // namespace
}  // namespace cairn::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: cairn_regression DIRECTORY [CASE...]\n");
    return 2;
  }
  return cairn::bench::Run(argv[1], std::vector<std::string_view>(argv + 2, argv + argc));
}
