// Texts of errors, system errors, and the check that ends the process.

#include "kv/base/error.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cairn {

const char* ErrorCodeName(ErrorCode code) {
  constexpr std::array kNames = {
      "NotFound",      "DataLoss",    "Conflict",          "InvalidArgument", "FailedPrecondition",
      "Unimplemented", "Unavailable", "ResourceExhausted", "Cancelled",       "Internal"};
  const auto number = static_cast<size_t>(code);
  return number < kNames.size() ? kNames[number] : "Unknown";
}

std::string Error::ToString() const {
  std::string text = message;
  std::string location;
  const auto add = [&location](std::string part) {
    location += location.empty() ? "" : ", ";
    location += part;
  };
  if (!key.empty()) add(fmt::format("key {}", key));
  if (step) add(fmt::format("step {}", *step));
  if (!file.empty()) add(fmt::format("file {}", file));
  if (offset_bytes) add(fmt::format("offset {}", *offset_bytes));
  if (!location.empty()) text += fmt::format(" ({})", location);
  return text;
}

Error Error::WithKey(std::string_view value) && {
  if (key.empty()) key = value;
  return std::move(*this);
}
Error Error::WithFile(std::string_view value) && {
  if (file.empty()) file = value;
  return std::move(*this);
}
Error Error::WithStep(uint64_t value) && {
  if (!step) step = value;
  return std::move(*this);
}
Error Error::WithOffset(uint64_t value) && {
  if (!offset_bytes) offset_bytes = value;
  return std::move(*this);
}
Error Error::WithHint(Hint value) && {
  if (hint == Hint::kNone) hint = value;
  return std::move(*this);
}

Error SystemError(int error_number, std::string what, std::string_view file) {
  ErrorCode code = ErrorCode::kUnavailable;
  const char* advice = "";
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      code = ErrorCode::kNotFound;
      break;
    case ENOSPC:
    case EDQUOT:
      code = ErrorCode::kResourceExhausted;
      advice = "; free some space and try again";
      break;
    case EFBIG:
      code = ErrorCode::kResourceExhausted;
      advice = "; raise the limit of the size of files (ulimit -f)";
      break;
    case EACCES:
    case EPERM:
      advice = "; give this user access, or run as the owner of the file";
      break;
    case EROFS:
      advice = "; mount the file system writable, or use another path";
      break;
    case ENOMEM:
      code = ErrorCode::kResourceExhausted;
      break;
    case EMFILE:
    case ENFILE:
      code = ErrorCode::kResourceExhausted;
      advice = "; raise the limit of open files";
      break;
    default:
      break;
  }
  return Error{.code = code,
               .message = fmt::format("{}: {}{}", what, std::strerror(error_number), advice),
               .file = std::string(file)};
}

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "cairn: broken invariant at %s:%d: %s\n", file, line, condition);
  std::abort();
}

}  // namespace cairn
