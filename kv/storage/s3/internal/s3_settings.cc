// Parsing of addresses, the INI dialect of AWS, and the order in which values are looked for.

#include "kv/storage/s3/internal/s3_settings.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "kv/io/internal/io_environment.h"
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

// Sets the option that a parameter of an address names, unless the caller has set it.
Result<void> SetParameter(std::string_view parameter, S3Options* options) {
  const size_t equals = parameter.find('=');
  const std::string_view name = parameter.substr(0, equals);
  const std::optional<std::string> value =
      equals == std::string_view::npos ? std::nullopt : DecodeUri(parameter.substr(equals + 1));
  if (!value || value->empty()) {
    return Invalid(fmt::format("the parameter \"{}\" of the address has no valid value", name));
  }
  if (name == "addressing") {
    CAIRN_TRY_ASSIGN(const S3Addressing addressing, ParseAddressing(*value));
    if (options->addressing == S3Addressing::kAutomatic) options->addressing = addressing;
    return {};
  }
  std::string* const option = name == "endpoint"  ? &options->endpoint
                              : name == "region"  ? &options->region
                              : name == "profile" ? &options->profile
                                                  : nullptr;
  if (option == nullptr) {
    return Invalid(
        fmt::format("the parameter \"{}\" of the address is not known; known are "
                    "endpoint, region, profile and addressing",
                    name));
  }
  if (option->empty()) *option = *value;
  return {};
}

constexpr size_t kMaxFileBytes = 4 << 20;

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::string ExpandHome(std::string path, const Environment& environment) {
  if (!path.starts_with("~/")) return path;
  std::string home = environment("HOME");
  const passwd* user = home.empty() ? ::getpwuid(::getuid()) : nullptr;
  if (user != nullptr && user->pw_dir != nullptr) home = user->pw_dir;
  return home + path.substr(1);
}

// "# ..." and "; ..." are comments at the beginning of a line, and after a value if white space
// precedes them.
std::string_view WithoutComment(std::string_view value) {
  for (size_t i = 1; i < value.size(); ++i) {
    const bool after_space = value[i - 1] == ' ' || value[i - 1] == '\t';
    if (after_space && (value[i] == '#' || value[i] == ';')) return Trim(value.substr(0, i));
  }
  return value;
}

// Returns the name in "[name]".
std::string SectionName(std::string_view line) {
  const size_t end = line.find(']');
  const std::string_view name = Trim(line.substr(1, end == std::string_view::npos ? end : end - 1));
  // "profile  x" and "profile x" are the same.
  const size_t space = name.find_first_of(" \t");
  if (space == std::string_view::npos) return std::string(name);
  return fmt::format("{} {}", name.substr(0, space), Trim(name.substr(space)));
}

// Adds the settings of a section with `prefix` before their names.
void Merge(const AwsSections& sections, const std::string& section, const char* prefix,
           AwsProfile* profile) {
  const auto found = sections.find(section);
  if (found == sections.end()) return;
  profile->exists = true;
  for (const auto& [name, value] : found->second) profile->settings[prefix + name] = value;
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

// Returns the number in the variable, or `fallback`; at most `most`.
Result<uint64_t> NumberFrom(const char* variable, const Environment& environment, uint64_t fallback,
                            uint64_t most) {
  const std::string text = environment(variable);
  if (text.empty()) return fallback;
  const std::optional<uint64_t> number = ParseDecimal(text);
  if (!number || *number == 0) {
    return Invalid(fmt::format("the environment variable {} is \"{}\", not a positive number",
                               variable, text));
  }
  return std::min(*number, most);
}

Result<void> ResolveEndpoint(const S3Options& options, const AwsProfile& profile,
                             const Environment& environment, S3Settings* settings) {
  settings->endpoint = FirstOf({options.endpoint, ConfiguredEndpoint(profile, environment)});
  const bool is_aws = settings->endpoint.empty();
  if (is_aws) {
    const char* domain = settings->region.starts_with("cn-") ? "amazonaws.com.cn" : "amazonaws.com";
    settings->endpoint = fmt::format("https://s3.{}.{}", settings->region, domain);
  }
  CAIRN_TRY_ASSIGN(const Url url, ParseEndpoint(settings->endpoint));
  settings->endpoint = url.scheme + "://" + url.rest;

  S3Addressing addressing = options.addressing;
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
  settings->timeout = options.timeout;
  if (settings->timeout.count() <= 0) {
    CAIRN_TRY_ASSIGN(const uint64_t timeout_s,
                     NumberFrom("CAIRN_S3_TIMEOUT", environment, 60, 86'400));
    settings->timeout = std::chrono::seconds(timeout_s);
  }
  settings->part_bytes = options.part_bytes;
  if (settings->part_bytes == 0) {
    CAIRN_TRY_ASSIGN(settings->part_bytes,
                     NumberFrom("CAIRN_S3_PART_BYTES", environment, 8 << 20, UINT64_MAX));
  }
  if (settings->part_bytes < kMinPartBytes || settings->part_bytes > kMaxPartBytes) {
    return Invalid(
        fmt::format("parts of {} bytes are not possible: S3 requires at least {}, and "
                    "at most {} are supported",
                    settings->part_bytes, kMinPartBytes, kMaxPartBytes));
  }
  CAIRN_TRY_ASSIGN(const uint64_t depth, NumberFrom("CAIRN_S3_DEPTH", environment, 16, 1024));
  settings->queue_depth = static_cast<uint32_t>(depth);
  const uint64_t default_threads = std::clamp(std::thread::hardware_concurrency() / 8, 1U, 4U);
  CAIRN_TRY_ASSIGN(const uint64_t threads,
                   NumberFrom("CAIRN_S3_THREADS", environment, default_threads, 64));
  settings->io_threads = static_cast<uint32_t>(threads);
  return {};
}

}  // namespace

Result<std::string> ReadTextFile(const std::string& path, std::string_view what) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) {
    if (errno == ENOENT || errno == ENOTDIR) return std::string();
    return Fail(SystemError(errno, fmt::format("cannot read the {}", what), path));
  }
  std::string text;
  char buffer[4096];
  while (const size_t length = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    text.append(buffer, length);
    if (text.size() > kMaxFileBytes) {
      return Fail(ErrorCode::kInvalidArgument,
                  fmt::format("the {} has more than {} bytes", what, kMaxFileBytes), path);
    }
  }
  if (std::ferror(file.get()) != 0) {
    return Fail(SystemError(EIO, fmt::format("cannot read the {}", what), path));
  }
  return text;
}

std::string ProcessEnvironment(const char* name) { return std::string(EnvironmentVariable(name)); }

std::string AwsProfile::Get(std::string_view setting) const {
  const auto found = settings.find(setting);
  return found == settings.end() ? std::string() : found->second;
}

AwsSections ParseAwsSections(std::string_view text) {
  AwsSections sections;
  std::map<std::string, std::string, std::less<>>* settings = nullptr;
  std::string group;  // the setting to which indented lines belong
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view content = Trim(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    const bool indented = line.front() == ' ' || line.front() == '\t';
    if (!indented && content.front() == '[') {
      settings = &sections[SectionName(content)];
      group.clear();
      continue;
    }
    const size_t equals = content.find('=');
    if (settings == nullptr || equals == std::string_view::npos) continue;
    const std::string name(Trim(content.substr(0, equals)));
    const std::string value(WithoutComment(Trim(content.substr(equals + 1))));
    if (indented && !group.empty()) {
      (*settings)[group + "." + name] = value;
      continue;
    }
    group = value.empty() ? name : "";
    (*settings)[name] = value;
  }
  return sections;
}

Result<AwsProfile> ReadAwsProfile(const std::string& name, const Environment& environment) {
  const std::string named = !name.empty() ? name : environment("AWS_PROFILE");
  AwsProfile profile;
  profile.name = named.empty() ? "default" : named;
  const auto path_of = [&](const char* variable, const char* file) {
    const std::string path = environment(variable);
    return ExpandHome(path.empty() ? std::string("~/.aws/") + file : path, environment);
  };
  const std::string config_path = path_of("AWS_CONFIG_FILE", "config");
  const std::string credentials_path = path_of("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  CAIRN_TRY_ASSIGN(const std::string config_text, ReadTextFile(config_path, "AWS configuration"));
  CAIRN_TRY_ASSIGN(const std::string credentials_text,
                   ReadTextFile(credentials_path, "AWS configuration"));

  const AwsSections config = ParseAwsSections(config_text);
  if (profile.name == "default") Merge(config, "default", "", &profile);
  Merge(config, "profile " + profile.name, "", &profile);
  Merge(config, "services " + profile.Get("services"), "services.", &profile);
  Merge(ParseAwsSections(credentials_text), profile.name, "", &profile);
  if (!profile.exists && !named.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("there is no AWS profile \"{}\" in {} and {}; correct the profile or "
                            "AWS_PROFILE",
                            profile.name, config_path, credentials_path));
  }
  return profile;
}

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

Result<S3Address> ParseS3Address(std::string_view address, S3Options options) {
  const std::string whole(address);
  if (!address.starts_with("s3://")) {
    return Invalid(fmt::format("the address \"{}\" is not of the form s3://BUCKET/PREFIX", whole));
  }
  address.remove_prefix(5);
  const size_t question = address.find('?');
  std::string_view path = address.substr(0, question);
  S3Address parsed{.bucket = {}, .prefix = {}, .options = std::move(options)};
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
    CAIRN_TRY(SetParameter(query.substr(0, end), &parsed.options));
    query.remove_prefix(end == std::string_view::npos ? query.size() : end + 1);
  }
  return parsed;
}

std::string PlainAddress(const S3Address& address) {
  return address.prefix.empty() ? fmt::format("s3://{}", address.bucket)
                                : fmt::format("s3://{}/{}", address.bucket, address.prefix);
}

Result<S3Settings> ResolveS3Settings(const S3Address& address, const AwsProfile& profile,
                                     const Environment& environment) {
  const S3Options& options = address.options;
  S3Settings settings;
  settings.bucket = address.bucket;
  settings.prefix = address.prefix.empty() ? "" : address.prefix + "/";
  settings.address = PlainAddress(address);
  settings.region =
      FirstOf({options.region, environment("AWS_REGION"), environment("AWS_DEFAULT_REGION"),
               profile.Get("region"), "us-east-1"});
  if (!IsRegionName(settings.region)) {
    return Invalid(fmt::format("\"{}\" is not the name of a region", settings.region));
  }
  CAIRN_TRY(ResolveEndpoint(options, profile, environment, &settings));
  CAIRN_TRY(ResolveTransfers(options, environment, &settings));
  settings.ca_bundle =
      FirstOf({options.ca_bundle, environment("AWS_CA_BUNDLE"), profile.Get("ca_bundle")});
  const std::string calculation = FirstOf({environment("AWS_REQUEST_CHECKSUM_CALCULATION"),
                                           profile.Get("request_checksum_calculation")});
  settings.request_digests = calculation != "when_required" && calculation != "WHEN_REQUIRED";
  return settings;
}

}  // namespace cairn::kv::internal
