#pragma once
/// A temporary directory that exists as long as the object.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace cairn::testing {

/// Creates it below `parent`, by default below $TMPDIR (or /tmp). If CAIRN_KEEP_TEMP is set, it is
/// not removed, for inspection.
class ScopedTempDir {
 public:
  explicit ScopedTempDir(const std::filesystem::path& parent = {}) {
    std::string pattern =
        ((parent.empty() ? std::filesystem::temp_directory_path() : parent) / "cairn-test-XXXXXX")
            .string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      ADD_FAILURE() << "cannot make a temporary directory " << pattern;
    }
    path_ = pattern;
  }
  ~ScopedTempDir() {
    if (::getenv("CAIRN_KEEP_TEMP") != nullptr) return;
    std::error_code ignored;  // a directory that remains does not fail a test
    std::filesystem::remove_all(path_, ignored);
  }
  ScopedTempDir(const ScopedTempDir&) = delete;
  ScopedTempDir& operator=(const ScopedTempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return fmt::format("{}/{}", path_, name); }

 private:
  std::string path_;
};

}  // namespace cairn::testing
