// Reads each argument once, and refuses what was not read.

#include "python/src/keyword_arguments.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "python/src/credentials_function.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/streams.h"

namespace cairn::python {
namespace {

class Reader {
 public:
  explicit Reader(const nb::kwargs& arguments) : arguments_(arguments) {}

  /// Returns the argument, or nothing if it is absent or None.
  template <typename T>
  std::optional<T> Find(const char* name) {
    names_.append(name);
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
  /// Returns the names that were asked for.
  nb::tuple names() const { return nb::tuple(names_); }
  /// Raises TypeError if there are arguments that were not read.
  void Finish() const {
    if (read_count_ != arguments_.size()) throw nb::type_error("an unknown keyword argument");
  }

 private:
  const nb::kwargs& arguments_;
  size_t read_count_ = 0;
  nb::list names_;
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

}  // namespace

core::SaveOptions ToSaveOptions(const nb::kwargs& arguments, nb::tuple* names) {
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
  reader.Read("share_equal", options.share_equal);
  if (const auto metrics = reader.Find<std::vector<std::pair<std::string, double>>>("metrics")) {
    for (const auto& [name, value] : *metrics) {
      options.metrics.push_back({.name = name, .value = value});
    }
  }
  reader.Read("note", options.note);
  reader.Read("tags", options.tags);
  if (const auto seconds = reader.Find<double>("deadline")) options.deadline = ToTimeout(*seconds);
  if (const auto streams = reader.Find<Streams>("streams")) options.streams = ToStreams(*streams);
  reader.Read("device_snapshot", options.device_snapshot);
  reader.Finish();
  if (names != nullptr) *names = reader.names();
  return options;
}

nb::tuple SaveOptionNames() {
  nb::tuple names;
  ToSaveOptions(nb::kwargs(), &names);
  return names;
}

kv::StoreOptions ToStoreOptions(const nb::kwargs& arguments) {
  constexpr double kLongest = 100.0 * 365 * 24 * 3600;  // far from an overflow of nanoseconds
  Reader reader(arguments);
  kv::StoreOptions options;
  reader.Read("take_over", options.take_over);
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
  reader.Read("rendezvous", options.rendezvous);
  reader.Read("run_id", options.run_id);
  if (auto all_gather = reader.Find<nb::callable>("all_gather")) {
    options.all_gather = ToMessageAllGather(*std::move(all_gather));
  }
  reader.Read("interface", options.interface);
  if (const auto seconds = reader.Find<double>("connect_timeout")) {
    options.connect_timeout = ToTimeout(*seconds);
  }
  if (const auto seconds = reader.Find<double>("timeout")) options.timeout = ToTimeout(*seconds);
  reader.Finish();
  return options;
}

std::chrono::milliseconds ToTimeout(double seconds) {
  constexpr double kLongest = 30.0 * 24 * 3600;  // indefinite in practice, and far from overflow
  if (!(seconds > 0)) ThrowInvalid("a timeout must be a positive number of seconds");
  return std::chrono::milliseconds(
      std::max<int64_t>(1, static_cast<int64_t>(std::min(seconds, kLongest) * 1000)));
}

}  // namespace cairn::python
