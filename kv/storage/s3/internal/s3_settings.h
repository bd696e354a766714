#pragma once
/// Where an s3:// store is, and how it is reached: the address and the options, completed by the
/// environment and the profile in ~/.aws/config and ~/.aws/credentials.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "kv/base/error.h"
#include "kv/base/s3_options.h"

namespace cairn::kv::internal {

/// Returns the value of a variable of the environment, "" if it is not set. Tests replace it.
using Environment = std::function<std::string(const char* name)>;
/// Returns the variables of this process.
std::string ProcessEnvironment(const char* name);

/// The settings of one profile. Settings of nested groups have names such as "s3.addressing_style".
/// Values of the credentials file replace values of the config file.
struct AwsProfile {
  std::string name;
  bool exists = false;  // whether one of the files has it
  std::map<std::string, std::string, std::less<>> settings;

  /// Returns "" if the setting is absent.
  std::string Get(std::string_view setting) const;
};

/// The sections of a file in AWS's INI dialect: name of the section, then settings.
using AwsSections =
    std::map<std::string, std::map<std::string, std::string, std::less<>>, std::less<>>;
/// Ignores lines that it does not understand, as other AWS tools do.
AwsSections ParseAwsSections(std::string_view text);

/// Returns the contents of a file; "" if it does not exist. `what` names it in errors.
/// kInvalidArgument: it has more than 4 MiB. kUnavailable: it cannot be read.
Result<std::string> ReadTextFile(const std::string& path, std::string_view what);

/// Reads the profile `name`; if that is empty, the one in AWS_PROFILE, or "default". The settings
/// of its `services` section are included, as "services.s3.endpoint_url". kInvalidArgument: a
/// profile that was named by the caller or by AWS_PROFILE does not exist. kUnavailable: a file
/// exists and cannot be read.
Result<AwsProfile> ReadAwsProfile(const std::string& name, const Environment& environment);

/// S3 accepts no shorter part of an upload, except for the last one.
inline constexpr uint64_t kMinPartBytes = 5 << 20;

/// The parts of "s3://BUCKET/PREFIX?endpoint=URL&region=R&profile=P&addressing=path|virtual".
struct S3Address {
  std::string bucket;
  std::string prefix;  // without '/' at its ends; may be empty
  S3Options options;   // of the caller, completed by the parameters
};
/// kInvalidArgument: it is not such an address.
Result<S3Address> ParseS3Address(std::string_view address, S3Options options = {});
/// Returns "s3://BUCKET/PREFIX", without parameters.
std::string PlainAddress(const S3Address& address);

struct S3Settings {
  std::string bucket;
  std::string prefix;    // prefix of keys: empty, or ends with '/'
  std::string address;   // "s3://BUCKET/PREFIX"
  std::string endpoint;  // "https://s3.eu-west-1.amazonaws.com"; for messages
  std::string base_url;  // URL of the bucket, without '/' at its end
  std::string region;
  std::string ca_bundle;
  bool request_digests = true;
  std::chrono::milliseconds timeout{};
  uint64_t part_bytes = 0;
  uint32_t queue_depth = 0;
  uint32_t io_threads = 0;
};
/// Completes `address`; `profile` is the one that it or the environment names. kInvalidArgument: a
/// value is not valid; the message names where it is from.
Result<S3Settings> ResolveS3Settings(const S3Address& address, const AwsProfile& profile,
                                     const Environment& environment);

/// Returns whether `region` has only letters, digits, '-' and '_', so that it cannot change the
/// host of a URL that it becomes a part of.
bool IsRegionName(std::string_view region);

/// Encodes all but the characters that AWS's signatures leave as they are: letters, digits, '-',
/// '.', '_' and '~'; and '/' if `keep_slash`.
std::string EncodeUri(std::string_view text, bool keep_slash);

}  // namespace cairn::kv::internal
