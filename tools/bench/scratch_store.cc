// A temporary directory for the store of a measurement.

#include "tools/bench/scratch_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <system_error>

namespace cairn::tools {

ScratchStore::ScratchStore(const std::string& directory, std::string_view verb)
    : path_(std::filesystem::path(directory) / fmt::format("cairn-bench-{}-{}", verb, getpid())) {
  std::error_code ignored;
  while (std::filesystem::exists(path_, ignored)) path_ += "x";  // what exists is not ours
}

void ScratchStore::Remove() const {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace cairn::tools
