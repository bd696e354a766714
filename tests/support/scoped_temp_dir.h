#pragma once
/// A temporary directory that exists as long as the object, and files in it.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace cairn::testing {

/// The directory of tests that need no disk: $CAIRN_TEST_DIR, or the one in memory if there is one.
inline std::filesystem::path FastDirectory() {
  if (const char* given = ::getenv("CAIRN_TEST_DIR")) return given;
  return std::filesystem::exists("/dev/shm") ? "/dev/shm" : "";
}

/// Creates it below `parent`, by default below $CAIRN_TEST_DIR, $TMPDIR or /tmp. If CAIRN_KEEP_TEMP
/// is set, it is not removed, for inspection.
class ScopedTempDir {
 public:
  explicit ScopedTempDir(const std::filesystem::path& parent = {}) {
    const char* given = ::getenv("CAIRN_TEST_DIR");
    const std::filesystem::path usual =
        given != nullptr ? given : std::filesystem::temp_directory_path();
    std::string pattern = ((parent.empty() ? usual : parent) / "cairn-test-XXXXXX").string();
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

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void WriteText(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

}  // namespace cairn::testing
