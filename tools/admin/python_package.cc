#include "tools/admin/python_package.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace cairn::tools {
namespace {

namespace fs = std::filesystem;

// The current directory, which Python would search for modules, may contain anything. Without the
// garbage collector, torch is imported in 0.8 of the time.
constexpr const char* kCode = R"(
import gc, sys
gc.disable()
sys.path = [path for path in sys.path if path]
try:
    import torch
    from cairn._interop.main import main
except ImportError as error:
    print(f"kv-admin: files of torch and conversions need torch and cairn in Python, "
          f"and {sys.executable} cannot import them ({error}); install them, or name another "
          "Python in CAIRN_PYTHON",
          file=sys.stderr)
    sys.exit(2)
gc.freeze()
gc.enable()
sys.exit(main(sys.argv[1:]))
)";

bool IsFile(const fs::path& path) {
  std::error_code ignored;  // a path that cannot be examined is not a file
  return fs::is_regular_file(path, ignored);
}

std::string BeginOf(const fs::path& path, size_t byte_count) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(byte_count, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin;
}

std::string FindPython() {
  // The environment decides, as in a shell; nothing else changes it.
  if (const char* const chosen = std::getenv("CAIRN_PYTHON"); chosen != nullptr && *chosen != 0) {
    return chosen;  // NOLINT(concurrency-mt-unsafe)
  }
  std::error_code ignored;  // then the PATH decides
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path near = program.parent_path() / "python3";
  return !program.empty() && IsFile(near) ? near.string() : "python3";
}

}  // namespace

bool LooksLikeTorchFile(const std::string& path) {
  if (!IsFile(path)) return false;  // reading a pipe would wait for its writer
  const std::string begin = BeginOf(path, 4);
  // A zip archive, or before torch 1.6 a pickle. Read as the length of a safetensors header, the
  // first bytes of the pickle would exceed the limit of that format.
  return begin == "PK\x03\x04" || begin == "\x80\x02\x8a\n";
}

bool LooksLikeDcpCheckpoint(const std::string& path) {
  if (IsFile(path)) return path.ends_with(".metadata");
  // A store has a file of this name too, a text (docs/format/store.md).
  const bool has_metadata = IsFile(fs::path(path) / ".metadata") &&
                            BeginOf(fs::path(path) / ".metadata", 9) != "cbuiltins";
  return has_metadata || IsFile(fs::path(path) / "__0.metadata");
}

std::vector<Argument> Conversion::Arguments() {
  return {Option("--rename", "REGEX=TEXT", &rename,
                 "Replace the first match of a regular expression in each key; may be repeated"),
          Option("--rules", "FILE", &rules_file,
                 "Convert by the rules in this JSON file (docs/conversion.md)"),
          Option("--dtype", "DTYPE", &dtype,
                 "Cast all floating-point tensors: float32, float16, bfloat16 or float64")};
}

void Conversion::AppendTo(std::vector<std::string>& words) const {
  for (const std::string& one : rename) words.push_back("--rename=" + one);
  if (!rules_file.empty()) words.push_back("--rules=" + rules_file);
  if (!dtype.empty()) words.push_back("--dtype=" + dtype);
}

Result<void> BecomePython(const std::vector<std::string>& words) {
  std::string python = FindPython();
  std::vector<std::string> arguments = {python, "-c", kCode};
  arguments.insert(arguments.end(), words.begin(), words.end());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execvp(python.c_str(), pointers.data());
  return Fail(
      Error{.code = ErrorCode::kUnavailable,
            .message = fmt::format("files of torch and conversions need Python, which cannot "
                                   "be started ({}); name the interpreter in CAIRN_PYTHON",
                                   std::strerror(errno)),
            .file = python});
}

std::string AsWord(std::string_view path) {
  return std::string(path.starts_with('-') ? "./" : "").append(path);
}

}  // namespace cairn::tools
