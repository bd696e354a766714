// Parsing of addresses.

#include "kv/storage/rados/internal/rados_settings.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "kv/io/internal/file.h"
#include "kv/io/internal/io_environment.h"
#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr std::string_view kScheme = "rados:";
// An OSD refuses writes of more than osd_max_write_size, 90 MiB.
constexpr uint64_t kMinStripeBytes = 64 << 10;
constexpr uint64_t kMaxStripeBytes = 64 << 20;
constexpr uint64_t kMaxTimeoutSeconds = 86'400;

Result<void> SetParameter(std::string_view parameter, RadosSettings* settings) {
  const size_t equals = parameter.find('=');
  const std::string_view name = parameter.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : parameter.substr(equals + 1);
  if (value.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the parameter \"{}\" of the address has no value", name));
  }
  if (name == "conf") {
    settings->conf = AbsolutePath(std::string(value));  // it is read at the first request
  } else if (name == "id") {
    settings->id = value;
  } else if (name == "data_pool") {
    settings->data_pool = value;
  } else if (name == "stripe") {
    const std::optional<uint64_t> bytes = ParseDecimal(value);
    if (!bytes || *bytes < kMinStripeBytes || *bytes > kMaxStripeBytes) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("the stripe \"{}\" is not a number of bytes from {} to {}", value,
                              kMinStripeBytes, kMaxStripeBytes));
    }
    settings->stripe_bytes = *bytes;
  } else {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the parameter \"{}\" of the address is not known; known are conf, "
                            "id, data_pool and stripe",
                            name));
  }
  return {};
}

}  // namespace

Result<RadosSettings> ParseRadosAddress(std::string_view address) {
  const size_t question = address.find('?');
  std::string_view place = address.substr(0, question);
  RadosSettings settings;
  CAIRN_CHECK(place.starts_with(kScheme));
  place.remove_prefix(kScheme.size());
  while (place.ends_with('/')) place.remove_suffix(1);
  const size_t slash = place.find('/');
  settings.pool = place.substr(0, slash);
  if (slash != std::string_view::npos) settings.name_space = place.substr(slash + 1);
  if (settings.pool.empty() || settings.name_space.empty() || settings.name_space[0] == '/') {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("the address \"{}\" is not of the form rados:POOL/NAMESPACE", address));
  }
  settings.address = fmt::format("rados:{}/{}", settings.pool, settings.name_space);
  std::string_view parameters;
  if (question != std::string_view::npos) parameters = address.substr(question + 1);
  while (!parameters.empty()) {
    const size_t end = parameters.find('&');
    CAIRN_TRY(SetParameter(parameters.substr(0, end), &settings));
    parameters.remove_prefix(end == std::string_view::npos ? parameters.size() : end + 1);
  }
  CAIRN_TRY_ASSIGN(const uint64_t timeout_s,
                   IntegerVariable("CAIRN_RADOS_TIMEOUT", 1, kMaxTimeoutSeconds, 60));
  settings.timeout = std::chrono::seconds(timeout_s);
  return settings;
}

}  // namespace cairn::kv::internal
