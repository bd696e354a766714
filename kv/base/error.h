#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Values for operational errors: `Result<T>` and `Error`.

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <utility>

namespace cairn {

/// Indicates what the caller should do next.
enum class ErrorCode {
  kNotFound,            // ask for something else
  kDataLoss,            // stop and repair: bytes on disk are not what was written
  kConflict,            // another writer has the store, or the object already exists
  kInvalidArgument,     // fix the call
  kFailedPrecondition,  // fix the state (closed store, read-only store)
  kUnimplemented,       // use a newer build: a newer format, or an unknown type
  kUnavailable,         // retry later: I/O error, permission, deadline
  kResourceExhausted,   // free some space or memory, then retry
  kCancelled,           // the caller asked to stop
  kInternal,            // a bug
};

/// Returns "NotFound", "DataLoss", ...
const char* ErrorCodeName(ErrorCode code);

/// What can be done next, if the code and the location do not suffice to know it. The code that
/// creates an error sets it; the code that shows the error translates it to commands or to calls.
enum class Hint : uint8_t {
  kNone,            // nothing more is known
  kStated,          // the message states it
  kRebuild,         // the roots of a store are lost, and the store is still there
  kRebuildTables,   // tables of a store are lost, which a mirror may have
  kRestoreStore,    // a rebuild does not help, only a backup or a mirror
  kFetchFile,       // the damaged file is not part of a store
  kCreateStore,     // there is no store
  kFindStore,       // there is something else in place of a store
  kMakeDirectory,   // the file can be created if its directory exists
  kOpenForWriting,  // the store is open for reading only
  kOverwrite,       // what exists can be replaced
  kListSteps,       // another step exists
  kListKeys,        // another key exists
};

/// What went wrong, where, and what to do. Each layer adds the location that it knows, once.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  Hint hint = Hint::kNone;
  std::string message;  // what was attempted, expected and found
  std::string key;      // FQN, if the error concerns one
  std::string file;     // path, if the error concerns one
  std::optional<uint64_t> step;
  std::optional<uint64_t> offset_bytes;  // in `file`

  /// Returns one line: the message, then the key, step, file and offset if they are known.
  std::string ToString() const;

  // Set a field unless it has a value already: the layer nearest to the failure knows best.
  Error WithKey(std::string_view value) &&;
  Error WithFile(std::string_view value) &&;
  Error WithStep(uint64_t value) &&;
  Error WithOffset(uint64_t value) &&;
  Error WithHint(Hint value) &&;
};

template <typename T>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> Fail(ErrorCode code, std::string message, std::string file = {},
                                   std::optional<uint64_t> offset_bytes = {}) {
  return std::unexpected(Error{.code = code,
                               .message = std::move(message),
                               .file = std::move(file),
                               .offset_bytes = offset_bytes});
}
inline std::unexpected<Error> Fail(Error error) { return std::unexpected(std::move(error)); }

/// Returns the error of a failed system call. `what` states what was attempted; `error_number` is
/// the value of errno.
Error SystemError(int error_number, std::string what, std::string_view file = {});

/// Ends the process with a message. For broken invariants, before wrong bytes reach the disk.
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

/// Whether CAIRN_DCHECK evaluates its condition.
#if !defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kChecksEverything = true;
#else
inline constexpr bool kChecksEverything = false;
#endif

}  // namespace cairn

#define CAIRN_CHECK(condition) \
  ((condition) ? void(0) : ::cairn::CheckFailed(#condition, __FILE__, __LINE__))

/// CAIRN_CHECK in debug and sanitizer builds. Other builds compile the condition but do not
/// evaluate it. For a check that would make saves slower, such as decoding every record that they
/// encode.
#define CAIRN_DCHECK(condition) (::cairn::kChecksEverything ? CAIRN_CHECK(condition) : void(0))

#define CAIRN_CONCAT_INNER(a, b) a##b
#define CAIRN_CONCAT(a, b) CAIRN_CONCAT_INNER(a, b)

/// Returns from the calling function with the error of `expression`, if it failed.
#define CAIRN_TRY(expression)                                                           \
  do {                                                                                  \
    auto&& cairn_try_result = (expression);                                             \
    if (!cairn_try_result) return std::unexpected(std::move(cairn_try_result).error()); \
  } while (false)

/// `CAIRN_TRY_ASSIGN(auto x, F())` assigns the value of F() to x, or returns from the calling
/// function with the error of F().
#define CAIRN_TRY_ASSIGN(target, expression) \
  CAIRN_TRY_ASSIGN_INNER(CAIRN_CONCAT(cairn_result_, __LINE__), target, expression)
#define CAIRN_TRY_ASSIGN_INNER(result, target, expression)        \
  auto result = (expression);                                     \
  if (!result) return std::unexpected(std::move(result).error()); \
  target = *std::move(result)
