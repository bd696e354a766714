#pragma once
/// Runs of mesh_program, and what the tests of them have in common.

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/process/child.h"

namespace cairn::testing {

inline int Setting(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : otherwise;
}

/// All ranks of one run.
class MeshJob {
 public:
  /// `words` are the arguments after MODE STORE RENDEZVOUS RUN RANK WORLD.
  MeshJob(const std::string& mode, const std::string& store, const std::string& rendezvous,
          uint32_t world, const std::vector<std::string>& words) {
    static int runs = 0;
    const std::string name = fmt::format("run{}", runs++);
    for (uint32_t rank = 0; rank < world; ++rank) {
      std::vector<std::string> all = {CAIRN_MESH_PROGRAM,     mode, store,
                                      "file://" + rendezvous, name, std::to_string(rank),
                                      std::to_string(world)};
      all.insert(all.end(), words.begin(), words.end());
      ranks_.push_back(std::make_unique<Child>(all));
    }
  }

  Child& operator[](size_t rank) { return *ranks_[rank]; }
  size_t size() const { return ranks_.size(); }

 private:
  std::vector<std::unique_ptr<Child>> ranks_;
};

}  // namespace cairn::testing
