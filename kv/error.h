#pragma once
/// Operating errors as values: `Result<T>` and what an error says.

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <utility>

namespace cairn {

/// A code tells the caller what to do next.
enum class ErrorCode {
  kNotFound,            // ask for something else
  kDataLoss,            // stop and repair: bytes on disk are not what was written
  kConflict,            // another writer holds it, or it exists already
  kInvalidArgument,     // fix the call
  kFailedPrecondition,  // fix the state (closed store, read-only store)
  kUnimplemented,       // a newer format, or a thing this build does not know
  kUnavailable,         // retry later: I/O error, permission, deadline
  kResourceExhausted,   // free some space or memory, then retry
  kCancelled,           // the caller asked to stop
  kInternal,            // a bug
};

/// "NotFound", "DataLoss", ...
const char* ErrorCodeName(ErrorCode code);

/// What went wrong, where, and what to do. Each layer adds the place that it knows, once.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // what was attempted, expected and found
  std::string key;      // FQN, where one is concerned
  std::string file;     // path, where one is concerned
  std::optional<uint64_t> step;
  std::optional<uint64_t> offset_bytes;  // in `file`

  /// One line: message, then key, step, file and offset where known.
  std::string ToString() const;

  Error WithKey(std::string_view value) &&;
  Error WithFile(std::string_view value) &&;
  Error WithStep(uint64_t value) &&;
  Error WithOffset(uint64_t value) &&;
};

template <typename T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> Fail(ErrorCode code, std::string message) {
  return std::unexpected(Error{.code = code, .message = std::move(message)});
}
inline std::unexpected<Error> Fail(Error error) { return std::unexpected(std::move(error)); }

/// The error of a failed system call: `what` says what was attempted, `error_number` is errno.
Error SystemError(int error_number, std::string what, std::string_view file = {});

/// Ends the process with a message. For broken invariants, before bad bytes reach the disk.
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

}  // namespace cairn

#define CAIRN_CHECK(condition) \
  ((condition) ? void(0) : ::cairn::CheckFailed(#condition, __FILE__, __LINE__))

#define CAIRN_CONCAT_INNER(a, b) a##b
#define CAIRN_CONCAT(a, b) CAIRN_CONCAT_INNER(a, b)

/// Returns from the calling function with the error of `expression`, if it failed.
#define CAIRN_TRY(expression)                                                           \
  do {                                                                                  \
    auto&& cairn_try_result = (expression);                                             \
    if (!cairn_try_result) return std::unexpected(std::move(cairn_try_result).error()); \
  } while (false)

/// `CAIRN_TRY_ASSIGN(auto x, F())`: x is the value of F(), or the calling function returns its
/// error.
#define CAIRN_TRY_ASSIGN(target, expression) \
  CAIRN_TRY_ASSIGN_INNER(CAIRN_CONCAT(cairn_result_, __LINE__), target, expression)
#define CAIRN_TRY_ASSIGN_INNER(result, target, expression)        \
  auto result = (expression);                                     \
  if (!result) return std::unexpected(std::move(result).error()); \
  target = *std::move(result)
