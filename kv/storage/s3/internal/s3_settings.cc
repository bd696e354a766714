// Parsing of addresses, and the order in which values are looked for.

#include "kv/storage/s3/internal/s3_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <thread>
#include <utility>

#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMaxPartBytes = 1ULL << 30;  // S3 allows 5 GiB

bool IsAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

std::unexpected<Error> Invalid(std::string message) {
  return Fail(ErrorCode::kInvalidArgument, std::move(message));
}

std::optional<std::string> DecodeUri(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    uint8_t value = 0;
    const char* const begin = text.data() + i + 1;
    if (text.size() - i < 3 || std::from_chars(begin, begin + 2, value, 16).ptr != begin + 2) {
      return std::nullopt;
    }
    decoded += static_cast<char>(value);
    i += 2;
  }
  return decoded;
}

// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html, with the capital
// letters and '_' of old buckets and other servers.
bool IsBucketName(std::string_view bucket) {
  return bucket.size() >= 3 && bucket.size() <= 255 && IsAlphanumeric(bucket.front()) &&
         std::ranges::all_of(
             bucket, [](char c) { return IsAlphanumeric(c) || c == '.' || c == '-' || c == '_'; });
}

// Proxies and servers change "." and "..", and XML cannot contain control characters.
bool IsKeyPrefix(std::string_view prefix) {
  while (true) {
    const size_t slash = prefix.find('/');
    const std::string_view element = prefix.substr(0, slash);
    if (element.empty() || element == "." || element == ".." ||
        std::ranges::any_of(element, [](char c) { return static_cast<uint8_t>(c) < 0x20; })) {
      return false;
    }
    if (slash == std::string_view::npos) return true;
    prefix.remove_prefix(slash + 1);
  }
}

Result<S3Addressing> ParseAddressing(std::string_view text) {
  if (text == "path") return S3Addressing::kPath;
  if (text == "virtual") return S3Addressing::kVirtualHost;
  if (text.empty() || text == "auto") return S3Addressing::kAutomatic;
  return Invalid(fmt::format("the addressing \"{}\" is not path, virtual or auto", text));
}

Result<void> SetParameter(std::string_view parameter, S3Address* address) {
  const size_t equals = parameter.find('=');
  const std::string_view name = parameter.substr(0, equals);
  const std::optional<std::string> value =
      equals == std::string_view::npos ? std::nullopt : DecodeUri(parameter.substr(equals + 1));
  if (!value || value->empty()) {
    return Invalid(fmt::format("the parameter \"{}\" of the address has no valid value", name));
  }
  if (name == "endpoint") {
    address->endpoint = *value;
  } else if (name == "region") {
    address->region = *value;
  } else if (name == "profile") {
    address->profile = *value;
  } else if (name == "addressing") {
    CAIRN_TRY_ASSIGN(address->addressing, ParseAddressing(*value));
  } else {
    return Invalid(
        fmt::format("the parameter \"{}\" of the address is not known; known are "
                    "endpoint, region, profile and addressing",
                    name));
  }
  return {};
}

// Returns the first that is not empty.
std::string FirstOf(std::initializer_list<std::string> values) {
  const auto* found =
      std::ranges::find_if(values, [](const auto& value) { return !value.empty(); });
  return found == values.end() ? std::string() : *found;
}

std::string ConfiguredEndpoint(const AwsProfile& profile, const Environment& environment) {
  if (environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") == "true" ||
      profile.Get("ignore_configured_endpoint_urls") == "true") {
    return {};
  }
  return FirstOf({environment("AWS_ENDPOINT_URL_S3"), environment("AWS_ENDPOINT_URL"),
                  profile.Get("services.s3.endpoint_url"), profile.Get("endpoint_url")});
}

struct Url {
  std::string scheme;
  std::string rest;  // host, port and path
};

// Requests go to hosts that the endpoint names, so it must not contain anything unexpected.
Result<Url> ParseEndpoint(std::string endpoint) {
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const size_t colon = endpoint.find("://");
  if (colon == std::string::npos) {
    return Invalid(
        fmt::format("the endpoint \"{}\" does not begin with https:// or http://", endpoint));
  }
  Url url{.scheme = endpoint.substr(0, colon), .rest = endpoint.substr(colon + 3)};
  if (url.rest.find('@') != std::string::npos) {
    return Invalid("the endpoint contains a user name; credentials are not part of addresses");
  }
  const bool known_scheme = url.scheme == "https" || url.scheme == "http";
  if (!known_scheme || url.rest.empty() || url.rest.find_first_of(" ?#\r\n") != std::string::npos) {
    return Invalid(
        fmt::format("the endpoint \"{}\" is not of the form https://HOST[:PORT]", endpoint));
  }
  return url;
}

// Returns `value` unless it is 0, otherwise the number in the variable, or `fallback`.
Result<uint64_t> NumberOr(uint64_t value, const char* variable, const Environment& environment,
                          uint64_t fallback) {
  if (value != 0) return value;
  const std::string text = environment(variable);
  if (text.empty()) return fallback;
  const std::optional<uint64_t> number = ParseDecimal(text);
  if (!number || *number == 0) {
    return Invalid(fmt::format("the environment variable {} is \"{}\", not a positive number",
                               variable, text));
  }
  return *number;
}

Result<void> ResolveEndpoint(const S3Address& address, const S3Options& options,
                             const AwsProfile& profile, const Environment& environment,
                             S3Settings* settings) {
  settings->endpoint =
      FirstOf({options.endpoint, address.endpoint, ConfiguredEndpoint(profile, environment)});
  const bool is_aws = settings->endpoint.empty();
  if (is_aws) {
    const char* domain = settings->region.starts_with("cn-") ? "amazonaws.com.cn" : "amazonaws.com";
    settings->endpoint = fmt::format("https://s3.{}.{}", settings->region, domain);
  }
  CAIRN_TRY_ASSIGN(const Url url, ParseEndpoint(settings->endpoint));
  settings->endpoint = url.scheme + "://" + url.rest;

  S3Addressing addressing =
      options.addressing != S3Addressing::kAutomatic ? options.addressing : address.addressing;
  if (addressing == S3Addressing::kAutomatic) {
    CAIRN_TRY_ASSIGN(addressing, ParseAddressing(profile.Get("s3.addressing_style")));
  }
  if (addressing == S3Addressing::kAutomatic) {
    // A certificate of *.s3.amazonaws.com is not valid for names with further dots.
    const bool in_host = is_aws && settings->bucket.find('.') == std::string::npos;
    addressing = in_host ? S3Addressing::kVirtualHost : S3Addressing::kPath;
  }
  settings->base_url = addressing == S3Addressing::kVirtualHost
                           ? fmt::format("{}://{}.{}", url.scheme, settings->bucket, url.rest)
                           : fmt::format("{}/{}", settings->endpoint, settings->bucket);
  return {};
}

Result<void> ResolveTransfers(const S3Options& options, const Environment& environment,
                              S3Settings* settings) {
  const auto timeout_ms = static_cast<uint64_t>(std::max<int64_t>(0, options.timeout.count()));
  if (timeout_ms > 0) {
    settings->timeout = options.timeout;
  } else {
    CAIRN_TRY_ASSIGN(const uint64_t timeout_s, NumberOr(0, "CAIRN_S3_TIMEOUT", environment, 60));
    settings->timeout = std::chrono::seconds(std::min<uint64_t>(timeout_s, 86'400));
  }
  CAIRN_TRY_ASSIGN(settings->part_bytes,
                   NumberOr(options.part_bytes, "CAIRN_S3_PART_BYTES", environment, 8 << 20));
  if (settings->part_bytes < kMinPartBytes || settings->part_bytes > kMaxPartBytes) {
    return Invalid(
        fmt::format("parts of {} bytes are not possible: S3 requires at least {}, and "
                    "at most {} are supported",
                    settings->part_bytes, kMinPartBytes, kMaxPartBytes));
  }
  CAIRN_TRY_ASSIGN(const uint64_t depth,
                   NumberOr(options.queue_depth, "CAIRN_S3_DEPTH", environment, 16));
  settings->queue_depth = static_cast<uint32_t>(std::min<uint64_t>(depth, 1024));
  const uint64_t default_threads = std::clamp(std::thread::hardware_concurrency() / 8, 1U, 4U);
  CAIRN_TRY_ASSIGN(const uint64_t threads,
                   NumberOr(options.io_threads, "CAIRN_S3_THREADS", environment, default_threads));
  settings->io_threads = static_cast<uint32_t>(std::min<uint64_t>(threads, 64));
  return {};
}

}  // namespace

bool IsRegionName(std::string_view region) {
  return !region.empty() && std::ranges::all_of(region, [](char c) {
    return IsAlphanumeric(c) || c == '-' || c == '_';
  });
}

std::string EncodeUri(std::string_view text, bool keep_slash) {
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    if (IsAlphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '~' ||
        (c == '/' && keep_slash)) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<uint8_t>(c));
    }
  }
  return encoded;
}

Result<S3Address> ParseS3Address(std::string_view address) {
  const std::string whole(address);
  if (!address.starts_with("s3://")) {
    return Invalid(fmt::format("the address \"{}\" is not of the form s3://BUCKET/PREFIX", whole));
  }
  address.remove_prefix(5);
  const size_t question = address.find('?');
  std::string_view path = address.substr(0, question);
  S3Address parsed;
  const size_t slash = path.find('/');
  parsed.bucket = path.substr(0, slash);
  if (!IsBucketName(parsed.bucket)) {
    return Invalid(fmt::format("\"{}\" in the address \"{}\" is not the name of a bucket",
                               parsed.bucket, whole));
  }
  if (slash != std::string_view::npos) {
    path.remove_prefix(slash + 1);
    while (path.ends_with('/')) path.remove_suffix(1);
    if (!path.empty() && !IsKeyPrefix(path)) {
      return Invalid(
          fmt::format("the prefix \"{}\" in the address \"{}\" is not valid: its "
                      "elements are not empty, \".\" or \"..\", and contain no control "
                      "characters",
                      path, whole));
    }
    parsed.prefix = path;
  }
  std::string_view query =
      question == std::string_view::npos ? std::string_view() : address.substr(question + 1);
  while (!query.empty()) {
    const size_t end = query.find('&');
    CAIRN_TRY(SetParameter(query.substr(0, end), &parsed));
    query.remove_prefix(end == std::string_view::npos ? query.size() : end + 1);
  }
  return parsed;
}

std::string PlainAddress(const S3Address& address) {
  return address.prefix.empty() ? fmt::format("s3://{}", address.bucket)
                                : fmt::format("s3://{}/{}", address.bucket, address.prefix);
}

Result<S3Settings> ResolveS3Settings(const S3Address& address, const S3Options& options,
                                     const AwsProfile& profile, const Environment& environment) {
  S3Settings settings;
  settings.bucket = address.bucket;
  settings.prefix = address.prefix.empty() ? "" : address.prefix + "/";
  settings.address = PlainAddress(address);
  settings.region =
      FirstOf({options.region, address.region, environment("AWS_REGION"),
               environment("AWS_DEFAULT_REGION"), profile.Get("region"), "us-east-1"});
  if (!IsRegionName(settings.region)) {
    return Invalid(fmt::format("\"{}\" is not the name of a region", settings.region));
  }
  CAIRN_TRY(ResolveEndpoint(address, options, profile, environment, &settings));
  CAIRN_TRY(ResolveTransfers(options, environment, &settings));
  settings.ca_bundle =
      FirstOf({options.ca_bundle, environment("AWS_CA_BUNDLE"), profile.Get("ca_bundle")});
  settings.anonymous = options.anonymous;
  const std::string calculation = FirstOf({environment("AWS_REQUEST_CHECKSUM_CALCULATION"),
                                           profile.Get("request_checksum_calculation")});
  settings.request_digests = options.request_digests.value_or(calculation != "when_required" &&
                                                              calculation != "WHEN_REQUIRED");
  return settings;
}

}  // namespace cairn::kv::internal
