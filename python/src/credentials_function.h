#pragma once
/// A Python function that supplies the credentials of a store in a bucket.

#include <nanobind/nanobind.h>

#include <functional>

#include "kv/base/s3_options.h"

namespace cairn::python {

/// Returns kv::S3Options::credentials for a function that returns a mapping with access_key_id,
/// secret_access_key and optionally session_token and expiry (seconds since 1970). The result may
/// be called and destroyed on any thread, with or without the GIL. It returns kInvalidArgument if
/// the mapping is not as described, and kUnavailable if the function raises; no error contains its
/// result, or the message of its exception. Requires the GIL.
std::function<Result<kv::S3Credentials>()> ToCredentialsFunction(nanobind::callable function);

}  // namespace cairn::python
