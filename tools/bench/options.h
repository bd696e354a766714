#pragma once
/// The options of kv-bench's verbs.

#include <cstdint>
#include <string>

namespace cairn::tools {

struct BenchOptions {
  std::string directory;
  uint64_t bytes = 1 << 30;
  uint64_t repeat = 1;
  bool fio = false;
  bool warm = false;
  double changed_percent = 0;
  uint64_t chunks = 1'000'000;
  uint64_t steps = 1;
  uint64_t tensors = 0;  // 0: those of a model
  uint64_t ranks = 16'384;
  int device = 0;    // gpu
  std::string part;  // gpu; empty: all parts
};

}  // namespace cairn::tools
