// Reads each argument once, and refuses what was not read.

#include "python/src/keyword_arguments.h"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "kv/base/s3_options.h"
#include "python/src/convert.h"
#include "python/src/errors.h"
#include "python/src/gil.h"

namespace cairn::python {
namespace {

class Reader {
 public:
  explicit Reader(const nb::kwargs& arguments) : arguments_(arguments) {}

  /// Returns the argument, or nothing if it is absent or None.
  template <typename T>
  std::optional<T> Find(const char* name) {
    if (!arguments_.contains(name)) return std::nullopt;
    ++read_count_;
    const nb::object value = arguments_[name];
    if (value.is_none()) return std::nullopt;
    T converted{};
    if (!nb::try_cast(value, converted)) {
      throw nb::type_error((std::string(name) + ": a value of type " +
                            nb::inst_name(value).c_str() + " is not accepted")
                               .c_str());
    }
    return converted;
  }
  /// Sets `target` to the argument if there is one.
  template <typename T>
  void Read(const char* name, T& target) {
    if (auto value = Find<T>(name)) target = *std::move(value);
  }
  /// Raises TypeError if there are arguments that were not read.
  void Finish() const {
    if (read_count_ != arguments_.size()) throw nb::type_error("an unknown keyword argument");
  }

 private:
  const nb::kwargs& arguments_;
  size_t read_count_ = 0;
};

/// Requires that the result is called and destroyed on a thread with a Python state. Throws what
/// the function raises.
core::MessageAllGather ToMessageAllGather(nb::callable function) {
  return [function = std::move(function)](const std::string& message) {
    const GilAcquire gil;
    if (!gil) StopThread();
    return RunPython([&] {
      std::vector<std::string> messages;
      for (const nb::handle one : function(nb::bytes(message.data(), message.size()))) {
        const auto bytes = nb::cast<nb::bytes>(one);
        messages.emplace_back(bytes.c_str(), bytes.size());
      }
      return messages;
    });
  };
}

Error NotCredentials(std::string_view what) {
  return Error{
      .code = ErrorCode::kInvalidArgument,
      .message = fmt::format("the function given as credentials must return a mapping with "
                             "access_key_id, secret_access_key and optionally "
                             "session_token and expiry (seconds since 1970): {}",
                             what)};
}

// Requires the GIL. Throws what the function raises.
Result<kv::S3Credentials> CallForCredentials(const nb::callable& function) {
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

// Returns kv::S3Options::credentials for a function that returns a mapping with access_key_id,
// secret_access_key and optionally session_token and expiry (seconds since 1970). The result may
// be called and destroyed on any thread, with or without the GIL. It returns kInvalidArgument if
// the mapping is not as described, and kUnavailable if the function raises; no error contains its
// result, or the message of its exception. Requires the GIL.
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
      return CallForCredentials(*shared);
    } catch (nb::python_error& raised) {
      return Fail(Error{.code = ErrorCode::kUnavailable,
                        .message = fmt::format("the function given as credentials has raised {}",
                                               nb::type_name(raised.type()).c_str())});
    }
  };
}

}  // namespace

core::ApplicationRecordChanges ToRecordChanges(const nb::list& records) {
  core::ApplicationRecordChanges changes;
  for (const nb::handle pair : records) {
    const auto [name, data] = nb::cast<std::pair<std::string, nb::object>>(pair);
    std::optional<std::vector<std::byte>>& change = changes[name];
    if (data.is_none()) continue;
    const auto bytes = nb::cast<nb::bytes>(data);
    const auto* const begin = static_cast<const std::byte*>(bytes.data());
    change.emplace(begin, begin + bytes.size());
  }
  return changes;
}

core::SaveOptions ToSaveOptions(const nb::kwargs& arguments) {
  Reader reader(arguments);
  core::SaveOptions options;
  reader.Read("overwrite", options.overwrite);
  reader.Read("incremental", options.incremental);
  options.base_step = reader.Find<uint64_t>("base_step");
  reader.Read("unchanged", options.unchanged);
  reader.Read("chunk_bytes", options.chunk_bytes);
  reader.Read("deltas", options.max_deltas);
  reader.Read("statistics", options.statistics);
  options.compress = reader.Find<bool>("compress");
  reader.Read("compress_if_fast", options.compress_if_fast);
  reader.Read("share_equal", options.share_equal);
  if (const auto metrics = reader.Find<std::vector<std::pair<std::string, double>>>("metrics")) {
    for (const auto& [name, value] : *metrics) {
      options.metrics.push_back({.name = name, .value = value});
    }
  }
  reader.Read("note", options.note);
  reader.Read("tags", options.tags);
  for (auto& [name, data] :
       ToRecordChanges(reader.Find<nb::list>("records").value_or(nb::list()))) {
    if (data) options.records.emplace(name, *std::move(data));
  }
  options.parent = reader.Find<uint64_t>("parent");
  if (const auto run = reader.Find<nb::bytes>("run")) options.run = ToRunId(*run);
  if (const auto seconds = reader.Find<double>("deadline")) options.deadline = ToTimeout(*seconds);
  if (const auto streams = reader.Find<Streams>("streams")) options.streams = ToStreams(*streams);
  reader.Read("device_snapshot", options.device_snapshot);
  reader.Finish();
  return options;
}

kv::StoreOptions ToStoreOptions(const nb::kwargs& arguments) {
  constexpr double kLongest = 100.0 * 365 * 24 * 3600;  // far from an overflow of nanoseconds
  Reader reader(arguments);
  kv::StoreOptions options;
  reader.Read("take_over", options.take_over);
  reader.Read("session", options.session);
  if (const auto seconds = reader.Find<double>("grace")) {
    if (!(*seconds >= 0)) ThrowInvalid("grace must not be a negative number of seconds");
    options.grace =
        std::chrono::milliseconds(static_cast<int64_t>(std::min(*seconds, kLongest) * 1000));
  }
  if (auto credentials = reader.Find<nb::callable>("credentials")) {
    options.s3.credentials = ToCredentialsFunction(*std::move(credentials));
  }
  reader.Finish();
  return options;
}

kv::CopyOptions ToCopyOptions(const nb::kwargs& arguments) {
  Reader reader(arguments);
  kv::CopyOptions options;
  reader.Read("steps", options.steps);
  options.into = reader.Find<uint64_t>("into");
  reader.Read("overwrite", options.overwrite);
  reader.Read("threads", options.threads);
  reader.Read("max_bytes_per_second", options.max_bytes_per_second);
  reader.Finish();
  return options;
}

core::GlooOptions ToGlooOptions(const nb::kwargs& arguments) {
  Reader reader(arguments);
  core::GlooOptions options;
  reader.Read("rank", options.rank);
  reader.Read("world_size", options.world_size);
  if (auto all_gather = reader.Find<nb::callable>("all_gather")) {
    options.all_gather = ToMessageAllGather(*std::move(all_gather));
  }
  reader.Read("interface", options.interface);
  reader.Read("route_to", options.route_to);
  if (const auto seconds = reader.Find<double>("connect_timeout")) {
    options.connect_timeout = ToTimeout(*seconds);
  }
  if (const auto seconds = reader.Find<double>("timeout")) options.timeout = ToTimeout(*seconds);
  reader.Finish();
  return options;
}

kv::RunId ToRunId(const nb::bytes& bytes) {
  kv::RunId run;
  if (bytes.size() != run.size()) ThrowInvalid("a run has 32 hex digits");
  std::memcpy(run.data(), bytes.data(), run.size());
  return run;
}

std::chrono::milliseconds ToTimeout(double seconds) {
  constexpr double kLongest = 30.0 * 24 * 3600;  // indefinite in practice, and far from overflow
  if (!(seconds > 0)) ThrowInvalid("a timeout must be a positive number of seconds");
  return std::chrono::milliseconds(
      std::max<int64_t>(1, static_cast<int64_t>(std::min(seconds, kLongest) * 1000)));
}

}  // namespace cairn::python
