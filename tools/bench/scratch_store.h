#pragma once
/// A place for a store that a measurement makes and removes again.

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace cairn::tools::internal {

/// A directory below --dir that this run makes and removes again, whatever happens.
class ScratchStore {
 public:
  ScratchStore(const std::string& directory, std::string_view verb)
      : path_(std::filesystem::path(directory) / fmt::format("cairn-bench-{}-{}", verb, getpid())) {
  }
  ~ScratchStore() { Remove(); }
  ScratchStore(const ScratchStore&) = delete;
  ScratchStore& operator=(const ScratchStore&) = delete;

  std::string path() const { return path_.string(); }
  /// What cannot be removed stays behind for the user to see; a measurement does not fail for it.
  void Remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace cairn::tools::internal
