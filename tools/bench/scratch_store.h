#pragma once
/// A temporary directory for the store of a measurement.

#include <filesystem>
#include <string>
#include <string_view>

namespace cairn::tools {

/// A directory below --dir that exists as long as this object.
class ScratchStore {
 public:
  /// Only chooses the name, DIRECTORY/cairn-bench-VERB-PID, or a longer one if that exists.
  ScratchStore(const std::string& directory, std::string_view verb);
  ~ScratchStore() { Remove(); }
  ScratchStore(const ScratchStore&) = delete;
  ScratchStore& operator=(const ScratchStore&) = delete;

  std::string path() const { return path_.string(); }
  /// Removes the directory. A failure is ignored: the user sees the directory, and the measurement
  /// is valid.
  void Remove() const;

 private:
  std::filesystem::path path_;
};

}  // namespace cairn::tools
