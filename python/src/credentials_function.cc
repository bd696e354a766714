#include "python/src/credentials_function.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "python/src/gil.h"

namespace cairn::python {
namespace {

namespace nb = nanobind;

Error NotCredentials(std::string_view what) {
  return Error{
      .code = ErrorCode::kInvalidArgument,
      .message = fmt::format("the function given as credentials must return a mapping with "
                             "access_key_id, secret_access_key and optionally "
                             "session_token and expiry (seconds since 1970): {}",
                             what)};
}

/// Requires the GIL. Throws what the function raises.
Result<kv::S3Credentials> Call(const nb::callable& function) {
  const nb::object found = RunPython([&] { return function(); });
  if (!PyMapping_Check(found.ptr())) return Fail(NotCredentials("it returned none"));
  const auto get = [&found](const char* name) -> nb::object {
    if (!PyMapping_HasKeyString(found.ptr(), name)) return nb::none();
    return found[name];
  };
  kv::S3Credentials credentials;
  if (!nb::try_cast(get("access_key_id"), credentials.access_key_id) ||
      !nb::try_cast(get("secret_access_key"), credentials.secret_access_key)) {
    return Fail(NotCredentials("the keys are missing or not of type str"));
  }
  const nb::object token = get("session_token");
  if (!token.is_none() && !nb::try_cast(token, credentials.session_token)) {
    return Fail(NotCredentials("session_token is not of type str"));
  }
  double expiry_seconds = 0;
  const nb::object expiry = get("expiry");
  if (expiry.is_none()) return credentials;
  if (!nb::try_cast(expiry, expiry_seconds)) {
    return Fail(NotCredentials("expiry is not a number"));
  }
  credentials.expiry = std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::duration<double>(expiry_seconds)));
  return credentials;
}

}  // namespace

std::function<Result<kv::S3Credentials>()> ToCredentialsFunction(nb::callable function) {
  // Shared by the copies of the result, the last of which may be destroyed without the GIL.
  const std::shared_ptr<nb::callable> shared(new nb::callable(std::move(function)),
                                             [](nb::callable* owned) {
                                               const GilAcquire gil;
                                               if (gil) delete owned;
                                             });
  return [shared]() -> Result<kv::S3Credentials> {
    const GilAcquire gil;
    if (!gil) return Fail(ErrorCode::kUnavailable, "no credentials, because Python is ending");
    try {
      return Call(*shared);
    } catch (nb::python_error& raised) {
      return Fail(Error{.code = ErrorCode::kUnavailable,
                        .message = fmt::format("the function given as credentials has raised {}",
                                               nb::type_name(raised.type()).c_str())});
    }
  };
}

}  // namespace cairn::python
